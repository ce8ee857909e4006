"""Which segmenter? Signal over variance of the default's gradient with the segments of each, and how long they are.

As benchmarks/gradient.py, from the same rollouts, references and past steps of a family, but credit is only that of the
default baseline, ``scale: none`` and as shipped; GRPO = 1. ``segments`` per trace and ``tokens`` per segment are those of
the measured rollouts. Stages are kept in ``--cache``: an interrupted run goes on there. A minute or two per family and
segmenter.

    OMP_NUM_THREADS=1 python benchmarks/segmenter_signal.py
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gradient import CACHE, QUICK, QUICK_TRAINING, measured
from grads.asking import Asked
from grads.credits import add_weights, gradients
from grads.methods import per_segment, verl_grpo
from grads.moments import Draw, draws, moments
from grads.stage import Setup, Sizes, draw_rollouts, success
from grads.step import Step
from grads.traces import build_pieces, build_traces, make_sketch, reference_gradient, sample
from grads.truth import Pool
from lab.models import CleanTraining, folder_name, load_models
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES, RIGHT_OR_WRONG
from record import Summary, write_record

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.tiny.reasoner import build_tokenizer
from rredcot_plugin.values.calibration import OutcomeCalibrator

OUTPUT = Path(__file__).parent / "results" / "segmenter_signal.json"
SEGMENTERS: dict[str, dict[str, Any]] = {
    "newline": {},
    "sentence": {},
    "hybrid": {},
    "hybrid_16": {"max_stretch_tokens": 16},
    "fixed_8": {"tokens": 8},
    "keyword": {},
    "entropy": {},
    "adaptive": {},
    "newline_entropy": {},
}
"""Name, without a number after it, and options."""


def config_of(name: str, **options: Any) -> RRedCoTConfig:
    kind = name.rpartition("_")[0] if name[-1].isdigit() else name
    return RRedCoTConfig.from_mapping({"segmenter": kind, "segmenter_kwargs": SEGMENTERS[name], **options})


def prepare(actor: Actor, sizes: Sizes, store: Store, names: list[str]) -> dict[str, Setup]:
    """What the steps are made of, for every segmenter; rollouts and references are shared."""
    seed, drawn = sizes.seed, draw_rollouts(actor, sizes, store)
    chosen, rest, counted, samples = drawn.chosen, drawn.rest, drawn.counted, drawn.samples
    traces, sketch = build_traces(actor, chosen, counted, seed), make_sketch(actor, sizes.sketch)
    halves = [
        tuple(reference_gradient(actor, q, own[p], sketch, store, f"gradient_{p}") for own in samples)
        for p, q in enumerate(chosen)
    ]
    means = torch.tensor([success(actor, q, samples[0][p]) for p, q in enumerate(chosen)]).float()
    past = build_traces(actor, rest, sample(actor, rest, sizes.group, seed + 5, store, "past"), seed + 1)
    asked = Asked(actor)
    whole = traces.batch(list(range(len(traces.rows))), [""] * len(traces.rows)).rollouts
    found = {}
    for name in names:
        segments = config_of(name).build_segmenter()(whole)
        pieces = [build_pieces(actor, traces, p, segments, sketch, store) for p in range(len(chosen))]
        windows: list[dict[str, Any]] = [
            {"default": _window(past, sizes, asked, name, number)} for number in range(sizes.windows)
        ]
        nothing = Pool({}, 1)
        found[name] = Setup(sizes, actor, traces, segments, pieces, halves, means, nothing, windows, asked)  # type: ignore[arg-type]
        print(f"{actor.family.name} {name}: {sum(len(own.number) for own in pieces)} segments", flush=True)
    return found


def _window(past: Any, sizes: Sizes, asked: Asked, name: str, number: int) -> dict[str, Any]:
    """State of a calibrator that has seen ``past`` steps on other prompts."""
    calibrator = OutcomeCalibrator(sizes.past)
    for batch in range(sizes.past):
        first = (number * sizes.past + batch) * sizes.prompts
        at = range(first, first + sizes.prompts)
        ids = [f"{p}" for p in at for _ in range(sizes.group)]
        rows = past.batch([int(i) for p in at for i in past.rollouts[p]], ids)
        chosen = config_of(name)
        segments = chosen.build_segmenter()(rows.rollouts)
        probed = asked.probed(rows, segments, chosen)
        assign_credit(rows.rollouts, chosen, segments=segments, probed=probed, calibrator=calibrator)
    return calibrator.state_dict()


def weights_of(setup: Setup, name: str) -> dict[str, list[torch.Tensor]]:
    """How much each distinct segment counts in every step, by method."""
    sizes, traces = setup.sizes, setup.traces
    weights = {
        method: [torch.zeros(sizes.steps, len(own.number)) for own in setup.pieces]
        for method in ("grpo", "default", "default_unscaled")
    }
    for n in range(sizes.steps):
        span = slice(n * sizes.group, (n + 1) * sizes.group)
        chosen = [int(i) for own in traces.rollouts for i in own[span]]
        rows = traces.batch(chosen, [f"{p}" for p in range(sizes.prompts) for _ in range(sizes.group)])
        segments = config_of(name).build_segmenter()(rows.rollouts)
        probed = setup.asked.probed(rows, segments, config_of(name))
        step = Step(rows, segments, {}, setup.pool, *[torch.zeros(len(chosen))] * 3)
        tables = {"grpo": verl_grpo(step, deviation=True)}
        for method, scale in (("default", "group_std"), ("default_unscaled", "none")):
            calibrator = OutcomeCalibrator(sizes.past)
            calibrator.load_state_dict(setup.windows[n % len(setup.windows)]["default"])
            credit = assign_credit(
                rows.rollouts,
                config_of(name, scale=scale),
                segments=segments,
                probed=probed,
                calibrator=calibrator,
            )
            tables[method] = per_segment(credit.advantages, segments)
        for method, table in tables.items():
            add_weights(setup, weights[method], n, segments, chosen, table)
    return weights


def measure(setup: Setup, name: str) -> Summary:
    sizes = setup.sizes
    drawn: list[Draw] = list(draws(sizes.steps, sizes.prompts, sizes.resamples, sizes.seed))
    found = {
        method: moments(gradients(setup, own), setup.reference, drawn)
        for method, own in weights_of(setup, name).items()
    }
    summary: Summary = {}
    for method in ("default", "default_unscaled"):
        own = measured(found[method], found["grpo"])
        summary |= {f"{measure}/{method}/{name}": own[measure] for measure in ("snr_vs_grpo", "bias")}
    counts = setup.segments.num_segments.float()
    lengths = setup.segments.lengths[setup.segments.exists].float()
    for label, x in (("segments", counts.mean()), ("tokens", lengths.mean())):
        summary[f"{label}/{name}"] = {"value": float(x), "low": float(x), "high": float(x)}
    return summary


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument(
        "--families", nargs="+", choices=RIGHT_OR_WRONG, default=["habits", "chains"], metavar="NAME"
    )
    parser.add_argument(
        "--segmenters", nargs="+", choices=list(SEGMENTERS), default=list(SEGMENTERS), metavar="NAME"
    )
    parser.add_argument("--candidates", type=int, default=256, help="questions that prompts are chosen from (256)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    begin = time.process_time()
    sizes = QUICK if args.quick else dataclasses.replace(Sizes(), candidates=args.candidates)
    training = QUICK_TRAINING if args.quick else CleanTraining()
    store = Store(args.cache / ("quick" if args.quick else "full"))
    models = load_models(store, training, {FAMILIES[name].model for name in args.families})
    summary: Summary = {}
    for family in args.families:
        own = FAMILIES[family]
        folder = Store(store.folder / folder_name(own, training))
        actor = Actor(own, models[own.model], build_tokenizer())
        for name, setup in prepare(actor, sizes, folder, args.segmenters).items():
            entries = measure(setup, name)
            summary |= {f"{family}/{key}": entry for key, entry in entries.items()}
            for key, entry in entries.items():
                print(
                    f"{family}/{key:44s}{entry['value']:8.3f} [{entry['low']:.3f}, {entry['high']:.3f}]",
                    flush=True,
                )
            settings = {
                "sizes": asdict(sizes),
                "segmenters": SEGMENTERS,
                "cpu_seconds": time.process_time() - begin,
            }
            write_record(args.output, settings, summary, {}, seeds=[sizes.seed], shown=[])


if __name__ == "__main__":
    main()
