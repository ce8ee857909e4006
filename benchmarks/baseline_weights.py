"""Which weight should a baseline give to a rollout? Signal over variance of the gradient on tiny reasoners.

Same rollouts, references and measures as ``benchmarks/gradient.py``, ``scale: none``, λ = 1; ``snr`` is relative to plain
leave-one-out, the mean of the siblings. For every baseline the stand-in for the squared gradient length of a token is
(1 − π(o_t))² (``proxy``) or 1 − 2π(o_t) + Σ_v π_v² (``exact``), which is that length with respect to the logits:

    trace, least_variance     with either; past steps of the fit have the same weights
    token_<weight>            ``baseline: token`` with each of its weights W (``prefix`` is its default)

    OMP_NUM_THREADS=1 python benchmarks/baseline_weights.py --families chains habits
    OMP_NUM_THREADS=1 python benchmarks/baseline_weights.py --quick --output quick.json
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
from estimators_table.families import step_gradients
from estimators_table.stage import Ready, get_ready
from gradient import CACHE, QUICK, QUICK_TRAINING, interval
from grads.moments import draws, moments
from grads.stage import Sizes
from grads.step import config
from grads.traces import Traces, build_traces, sample
from lab.models import CleanTraining, load_models
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES, RIGHT_OR_WRONG
from record import Summary, write_record

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.baselines.token import WEIGHTS, token_gradient_norms
from rredcot_plugin.baselines.weights import gradient_norm_proxy
from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.probes.squares import sum_pi_squared
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.tiny.reasoner import build_tokenizer
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator

OUTPUT = Path(__file__).parent / "results" / "baseline_weights.json"
PLAIN = "leave_one_out"


def exact_norms(rollouts: Rollouts, segments: Segments) -> torch.Tensor:
    """``gradient_norm_proxy`` with the squared length of the gradient itself."""
    return sum_per_segment(token_gradient_norms(rollouts), segments)


STATE_WEIGHTS = {"proxy": gradient_norm_proxy, "exact": exact_norms}


@torch.no_grad()
def squares_of(actor: Actor, traces: Traces) -> list[torch.Tensor]:
    """Σ_v π_v² of the response tokens of every trace."""
    found = []
    for row in traces.rows:
        logits = actor.model(torch.tensor([row.tokens]), use_cache=False).logits[0, len(row.prompt) - 1 : -1]
        found.append(sum_pi_squared(logits, torch.ones(len(logits))))
    return found


Windows = list[dict[str, dict[str, Any]]]
"""One of several pasts → one of ``STATE_WEIGHTS`` → a calibrator's state."""


def build_pasts(ready: Ready, store: Store) -> Windows:
    """What past steps on other prompts leave in calibrators that weigh their states by either norm."""
    sizes, actor = ready.sizes, ready.actor
    questions = actor.family.problems(
        "val", sizes.candidates + sizes.windows * sizes.past * sizes.prompts, sizes.seed
    )
    others = questions[sizes.candidates :]
    traces = build_traces(
        actor, others, sample(actor, others, sizes.group, sizes.seed + 5, store, "past"), sizes.seed + 1
    )
    squares = squares_of(actor, traces)
    found = []
    for window in range(sizes.windows):
        calibrators = {name: config(calibrate_window=sizes.past).build_calibrator() for name in STATE_WEIGHTS}
        for batch in range(sizes.past):
            first = (window * sizes.past + batch) * sizes.prompts
            at = range(first, first + sizes.prompts)
            chosen = [int(i) for p in at for i in traces.rollouts[p]]
            rows = traces.batch(chosen, [f"{p}" for p in at for _ in range(sizes.group)])
            for name, calibrator in calibrators.items():
                fitted(ready, rows, with_squares(rows, squares, chosen), name, calibrator)
        found.append({name: calibrator.state_dict() for name, calibrator in calibrators.items()})
    return found


def with_squares(rows: PromptedRollouts, squares: list[torch.Tensor], chosen: list[int]) -> Rollouts:
    found = torch.zeros(rows.rollouts.token_ids.shape)
    for row, i in enumerate(chosen):
        found[row, : len(squares[i])] = squares[i]
    return dataclasses.replace(rows.rollouts, sum_pi_squared=found.clamp(max=1))


def fitted(
    ready: Ready, rows: PromptedRollouts, rollouts: Rollouts, weight: str, calibrator: OutcomeCalibrator
) -> torch.Tensor:
    """Advantages of ``least_variance`` with one of ``STATE_WEIGHTS``; the calibrator's window gains the batch."""
    own = config(scale="none", baseline="least_variance")
    segments = own.build_segmenter()(rollouts)
    probed = ready.asked.probed(rows, segments, own)
    states = StateNumbers(gradient_norm_proxy=STATE_WEIGHTS[weight](rollouts, segments))
    return assign_credit(
        rollouts, own, segments=segments, probed=probed, calibrator=calibrator, states=states
    ).advantages


def advantages(ready: Ready, windows: Windows, number: int) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Advantages (B, T) of every variant on a step, and its traces."""
    rows, chosen = ready.step(number)
    rollouts = with_squares(rows, ready.squares, chosen)
    returns = rollouts.outcomes - others_mean(rollouts, ready.sizes.group)
    found = {PLAIN: returns[:, None] * rollouts.response_mask}
    for name, weight in STATE_WEIGHTS.items():
        calibrator = config(calibrate_window=ready.sizes.past).build_calibrator()
        calibrator.load_state_dict(windows[number % len(windows)][name])
        found[f"least_variance_{name}"] = fitted(ready, rows, rollouts, name, calibrator)
        own = config(scale="none", baseline="trace", value_estimator="confidence")
        segments = own.build_segmenter()(rollouts)
        states = StateNumbers(gradient_norm_proxy=weight(rollouts, segments))
        found[f"trace_{name}"] = assign_credit(rollouts, own, segments=segments, states=states).advantages
    for name in WEIGHTS:
        own = config(segmenter="none", scale="none", baseline="token", baseline_kwargs={"weight": name})
        found[f"token_{name}"] = assign_credit(rollouts, own).advantages
    return found, chosen


def others_mean(rollouts: Rollouts, group: int) -> torch.Tensor:
    own = rollouts.outcomes.unflatten(0, (-1, group))
    return ((own.sum(1, keepdim=True) - own) / (group - 1)).flatten()


def measure_family(ready: Ready, store: Store) -> Summary:
    """``measure/variant`` → number and interval, on the same groups for all."""
    sizes, windows = ready.sizes, build_pasts(ready, store)
    steps: dict[str, list[torch.Tensor]] = {}
    for number in range(sizes.steps):
        table, chosen = advantages(ready, windows, number)
        lengths = {name: round(float(x.double().square().sum()), 4) for name, x in sorted(table.items())}
        settings = [[list(ready.traces.rows[i].tokens) for i in chosen], lengths, sizes.sketch]
        made = store.tensors(
            f"weights_{number}", settings, lambda table=table, chosen=chosen: step_gradients(ready, chosen, table)
        )
        for name in table:
            steps.setdefault(name, []).append(made[name])
    drawn = list(draws(sizes.steps, sizes.prompts, sizes.resamples, sizes.seed))
    found = {name: moments(torch.stack(own), ready.reference, drawn) for name, own in steps.items()}
    summary: Summary = {}
    for name, own in found.items():
        ratios = [m.snr / other.snr for m, other in zip(own, found[PLAIN], strict=True)]
        summary[f"snr/{name}"] = interval(np.array(ratios))
        summary[f"bias/{name}"] = interval(np.array([m.bias for m in own]))
    for baseline in ("trace", "least_variance"):
        pair = zip(found[f"{baseline}_exact"], found[f"{baseline}_proxy"], strict=True)
        summary[f"exact_over_proxy/{baseline}"] = interval(np.array([a.snr / b.snr for a, b in pair]))
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--families", nargs="+", choices=RIGHT_OR_WRONG, default=["chains"], metavar="NAME")
    parser.add_argument("--candidates", type=int, default=256, help="questions that the prompts are chosen from")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.process_time()
    sizes = QUICK if args.quick else dataclasses.replace(Sizes(), candidates=args.candidates)
    training = QUICK_TRAINING if args.quick else CleanTraining()
    store = Store(args.cache / ("quick" if args.quick else "full"))
    models = load_models(store, training, {FAMILIES[name].model for name in args.families})
    summary: Summary = {}
    for name in args.families:
        family = FAMILIES[name]
        own = Store(store.folder / (name if family.model == "demo" else f"{name}_{training.steps}"))
        ready = get_ready(Actor(family, models[family.model], build_tokenizer()), sizes, own)
        entries = measure_family(ready, own)
        print(f"{name}: measured", flush=True)
        summary |= {f"{name}/{key}": entry for key, entry in entries.items()}
    settings = {"sizes": asdict(sizes), "training": asdict(training), "families": args.families}
    spent = {"cpu_seconds": time.process_time() - begin}
    write_record(args.output, settings | spent, summary, {}, seeds=[sizes.seed])


if __name__ == "__main__":
    main()
