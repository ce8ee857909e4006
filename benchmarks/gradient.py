"""How good is the gradient of each way of giving credit, on a tiny reasoner that samples its own traces?

The model stands still. Prompts of medium success (chosen by a pilot sample) get many independent groups of 8; a step
is one group of each, its credit from ``assign_credit`` with a calibrator that has seen four (``--past``) steps on other
prompts. Gradient of a step: mean over prompts and rollouts of Σ_t A_t ∇ log π(o_t).

Reference for all: leave-one-out REINFORCE on a separate sample of four times the rollouts, in two independent halves.
``snr_vs_grpo``: (E g · ∇/‖∇‖)² / tr Cov(g), GRPO = 1, at the same number of rollouts; ``snr_vs_trace``: one baseline per
trace = 1, of the same resamples, which is what segments have to beat. ``drawn_vs_grpo``: as ``snr_vs_grpo``
where a step's prompts are drawn at random, as in training: noise (``grpo_noise_of_prompts`` of GRPO's) that no credit
lowers. ``cosine`` of E g and ∇, and ``bias`` ‖E g − ∇‖ / ‖∇‖ (a gradient of another length counts as biased), without the noise of either. ``spread_vs_grpo``:
tr Cov(g) / ‖E g‖², GRPO = 1, under 1 is better. ``tokens``: of a step with continuations, those of its rollouts = 1.
With ``--adam`` all lengths and angles are those of gradients as Adam scales them (grads/adam.py).
95% intervals: bootstrap over steps and prompts. Gradients of distinct segments are sketched, see grads/sketch.py; on a
real language model (``--families totals words functions``), they are those of its last two layers. Stages are kept
in ``--cache``: an interrupted run goes on there.

    OMP_NUM_THREADS=1 python benchmarks/gradient.py
    OMP_NUM_THREADS=1 python benchmarks/gradient.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grads.actors import measured_actors
from grads.credits import Credits, credit_steps, gradients
from grads.drawing import TARGET, draw
from grads.moments import Draw, Moments, Reference, draws, moments
from grads.stage import Setup, Sizes, prepare
from grads.values import value_errors
from lab.devices import add_device, check_device, processor
from lab.models import CleanTraining
from lab.store import Store
from lab.tasks import RIGHT_OR_WRONG
from record import Summary, picture_of, write_record

OUTPUT = Path(__file__).parent / "results" / "gradient.json"
CACHE = Path(__file__).parent.parent / "outputs" / "gradient"
QUICK = Sizes(
    prompts=2, steps=6, reference=2, windows=1, candidates=10, pilot=16, pool=4, sketch=1024, resamples=20
)
QUICK_TRAINING = CleanTraining(steps=120)
GIVEN = {
    "prompts": "prompts of a step",
    "candidates": "questions that the prompts are chosen from",
    "past": "past steps that the calibrator has seen",
    "pool": "continuations of every state, 33 at least, or 0 to leave out the credit that needs them",
}
"""Sizes that the command line may give."""

SHIPPED, BASELINE, TRACE = "default", "grpo", "norm_weighted_mean"
MEASURES = ("snr_vs_grpo", "snr_vs_trace", "drawn_vs_grpo", "cosine", "bias", "spread_vs_grpo")


INDISPENSABLE = (BASELINE, TRACE, SHIPPED)
"""All others are measured by the first two, and the last is the headline."""


def measured(found: list[Moments], baseline: list[Moments], trace: list[Moments]) -> dict[str, dict[str, float]]:
    """Of the sample (first) with the bootstrap interval; all draws paired with those of GRPO, and of one baseline per trace."""
    columns = {
        "snr_vs_grpo": [own.snr / other.snr for own, other in zip(found, baseline, strict=True)],
        "snr_vs_trace": [own.snr / other.snr for own, other in zip(found, trace, strict=True)],
        "drawn_vs_grpo": [own.drawn_snr / other.drawn_snr for own, other in zip(found, baseline, strict=True)],
        "spread_vs_grpo": [own.spread / other.spread for own, other in zip(found, baseline, strict=True)],
        "cosine": [own.cosine for own in found],
        "bias": [own.bias for own in found],
    }
    return {name: interval(np.array(numbers)) for name, numbers in columns.items()}


def interval(numbers: np.ndarray) -> dict[str, float]:
    """The sample's number with the 95% interval of the draws that have one.

    Raises:
        ValueError: a sample without a number: too few steps to tell its length from 0.
    """
    if not np.isfinite(numbers[0]):
        raise ValueError("the gradient's length cannot be told from 0; use more steps or prompts (grads/stage.py)")
    low, high = np.nanquantile(numbers[1:], [0.025, 0.975])
    # a debiased length has a mode at 0, so a sample may stand outside its own quantiles
    return {"value": float(numbers[0]), "low": float(min(low, numbers[0])), "high": float(max(high, numbers[0]))}


def measure_family(setup: Setup, credits: Credits) -> tuple[Summary, dict[str, Any]]:
    """Entries of every method, and its cosine on every prompt alone."""
    sizes, reference = setup.sizes, setup.reference
    drawn = list(draws(sizes.steps, sizes.prompts, sizes.resamples, sizes.seed))
    alone = [Draw(torch.ones(sizes.steps), row) for row in torch.eye(sizes.prompts)]
    found = {
        name: moments(gradients(setup, weights), reference, drawn + alone)
        for name, weights in credits.weights.items()
    }
    baseline, trace = (found[name][: len(drawn)] for name in (BASELINE, TRACE))
    summary: Summary = {}
    raw: dict[str, Any] = {}
    for name, drawn_and_alone in found.items():
        own, each = drawn_and_alone[: len(drawn)], drawn_and_alone[len(drawn) :]
        try:
            numbers = measured(own, baseline, trace)
        except ValueError as error:
            if name in INDISPENSABLE:
                raise
            print(f"{name}: left out, {error}", flush=True)
            continue
        summary |= {f"{measure}/{name}": entry for measure, entry in numbers.items()}
        raw[name] = {
            "moments": " ".join(f"{key}={value:.4g}" for key, value in asdict(own[0]).items()),
            "cosine_by_prompt": " ".join(f"{m.cosine:.3f}" for m in each),
        }
    summary |= {f"tokens/{name}": {"value": x, "low": x, "high": x} for name, x in credits.tokens.items()}
    summary |= facts(setup, baseline[0])
    summary |= value_errors(credits.values)
    return summary, raw


def facts(setup: Setup, grpo: Moments) -> Summary:
    """How noisy a step is, how good the reference, and how far the sketch is from exact products."""
    reference, exact = setup.reference, setup.exact_reference
    numbers = {
        "grpo_noise_over_signal": 1 / grpo.snr,
        "grpo_noise_of_prompts": grpo.prompts / (grpo.trace + grpo.prompts),
        "accuracy": float(setup.prompt_means.mean()),
        "distinct_segments": float(sum(len(own.number) for own in setup.pieces)),
        "reference_cosine_of_halves": float(
            torch.cosine_similarity(reference.first.sum(0), reference.second.sum(0), dim=0)
        ),
        "sketch_error": _product(reference) / _product(exact) - 1,
    }
    return {name: {"value": x, "low": x, "high": x} for name, x in numbers.items()}


def _product(reference: Reference) -> float:
    return float(reference.first.sum(0) @ reference.second.sum(0))


def show(family: str, summary: Summary, names: list[str]) -> None:
    print(f"\n{family:28s}" + "".join(f"{measure:>24s}" for measure in MEASURES))
    for name in names:
        entries = [summary[f"{family}/{measure}/{name}"] for measure in MEASURES]
        cells = "".join(f"{e['value']:9.3f} [{e['low']:5.2f},{e['high']:6.2f}]" for e in entries)
        print(f"{name:28s}{cells}")
    for key, entry in summary.items():
        if key.startswith(f"{family}/") and key.count("/") == 1:
            print(f"  {key:38s}{entry['value']:9.3f} [{entry['low']:.3f}, {entry['high']:.3f}]")


def headline(summary: Summary, families: list[str]) -> Summary:
    """The shipped default where it is worst, and whether that reaches the target."""
    at = min(families, key=lambda family: summary[f"{family}/snr_vs_grpo/{SHIPPED}"]["value"])
    entry = summary[f"{at}/snr_vs_grpo/{SHIPPED}"]
    verdict = "MET" if entry["value"] >= TARGET else "MISSED"
    print(f"\nsnr_vs_grpo of the default, worst family ({at}): {entry['value']:.3f}, target {TARGET}: {verdict}")
    return {"snr_vs_grpo": entry}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument(
        "--families", nargs="+", choices=RIGHT_OR_WRONG, default=["sums", "sorting"], metavar="NAME"
    )
    parser.add_argument("--steps", type=int, default=CleanTraining.steps, help="training steps of the clean model")
    for name, meaning in GIVEN.items():
        parser.add_argument(f"--{name}", type=int, help=f"{meaning} (default {getattr(Sizes, name)})")
    parser.add_argument(
        "--success",
        nargs=2,
        type=float,
        default=(Sizes.low, Sizes.high),
        metavar=("LOW", "HIGH"),
        help=f"rates of success between which prompts are taken (default {Sizes.low} {Sizes.high})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of questions and rollouts (default 0)")
    parser.add_argument("--adam", action="store_true", help="lengths and angles as Adam scales every coordinate")
    add_device(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes; the picture beside it")
    args = parser.parse_args()
    for name in GIVEN:
        given, least = getattr(args, name), int(name != "pool")
        if given is not None and given < least:
            parser.error(f"--{name} {given}: expected an integer from {least}")
    low, high = args.success
    if not 0 <= low <= high <= 1:
        parser.error(f"--success {low:g} {high:g}: expected 0 <= LOW <= HIGH <= 1")
    return args


def main() -> None:
    args = parse_arguments()
    check_device(args.device)
    torch.set_num_threads(1)
    begin = time.process_time()
    low, high = args.success
    sizes = dataclasses.replace(
        QUICK if args.quick else Sizes(), seed=args.seed, low=low, high=high, adam=args.adam
    )
    given = {name: getattr(args, name) for name in GIVEN if getattr(args, name) is not None}
    sizes = dataclasses.replace(sizes, **given)
    training = QUICK_TRAINING if args.quick else CleanTraining(steps=args.steps)
    store = Store(args.cache / ("quick" if args.quick else "full"))
    summary: Summary = {}
    raw: dict[str, Any] = {}
    for actor, own in measured_actors(args.families, training, store, args.device):
        name, setup = actor.family.name, prepare(actor, sizes, own)
        credits = credit_steps(setup, lambda n, name=name: _progress(name, n, sizes.steps))  # type: ignore[misc]
        entries, raw[name] = measure_family(setup, credits)
        summary |= {f"{name}/{key}": entry for key, entry in entries.items()}
        show(name, summary, list(raw[name]))
        # written after every family, so that an interrupted run leaves what it has, and says which families
        settings = {"sizes": asdict(sizes), "training": asdict(training), "target": TARGET, "families": list(raw)}
        settings["device"] = processor(args.device, "cpu")
        spent = {"cpu_seconds": time.process_time() - begin}
        first = headline(summary, list(raw))
        write_record(args.output, settings | spent, first | summary, raw, seeds=[sizes.seed], shown=list(first))
        everywhere = [method for method in credits.weights if all(method in own for own in raw.values())]
        draw(picture_of(args.output), summary, list(raw), everywhere)


def _progress(family: str, step: int, steps: int) -> None:
    if (step + 1) % 16 == 0 or step + 1 == steps:
        print(f"{family}: step {step + 1}/{steps}", flush=True)


if __name__ == "__main__":
    main()
