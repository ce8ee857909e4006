"""Values and credit of every estimator against Monte-Carlo values, on tiny reasoners and six task families.

    OMP_NUM_THREADS=1 python benchmarks/fidelity.py
    OMP_NUM_THREADS=1 python benchmarks/fidelity.py --quick
    OMP_NUM_THREADS=1 python benchmarks/fidelity.py --diagnose

``make bench-lm`` asks a real language model, on ``totals``, ``words`` and ``functions`` (an hour the first time).

A family's model answers held-out questions, in four independent draws: each is batches of prompts × group rollouts as
training steps have them; a segment is a line. Some rollouts of the last batch are judged: from every boundary of theirs
the model continues 32 times (the reference) and 4 times more (``monte_carlo_4``). Estimators run through
``assign_credit``; where they calibrate, the earlier batches of the draw are the window of past steps. Measures are of
the places of all draws together, nothing is fitted across draws.

``pearson_value``: V̂_k and reference over the boundaries after the prompt; ``pearson_delta``: V̂_k − V̂_{k−1}, the
answer's own segment left out, since R is in it on both sides; ``blame``: in wrong traces, the chance that the segment
with the first wrong line has less credit than another one of the trace (area under the curve within a trace).
``/correct`` and ``/wrong`` are traces by their own outcome. ``ceiling`` is what the true values would reach against
this reference. Intervals: bootstrap over the prompts of all draws, 95%. Results of every stage are kept in
``--cache``: an interrupted run goes on from there, a file that does not hold what was written is named and made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab.agreement import Interval, Pairs, blame, ceiling, mean, pearson, rmse, spearman
from lab.devices import add_device, check_device, processor
from lab.diagnose import diagnose
from lab.estimators import ESTIMATORS, Workbench, config_of
from lab.family import Family
from lab.judged import Judged
from lab.lm.weights import WeightsError
from lab.models import CleanTraining, folder_name, load_models, load_tokenizer
from lab.picture import draw as draw_picture
from lab.rollouts import Actor, reference_values, sample_batch
from lab.store import Store
from lab.tasks import FAMILIES, RIGHT_OR_WRONG
from lab.verdict import show, targets_of, without_unknown, worst
from record import Summary, picture_of, write_record

OUTPUT = Path(__file__).parent / "results" / "fidelity.json"
CACHE = Path(__file__).parent.parent / "outputs" / "fidelity"
KEPT = ("default", "support")
"""Estimators whose values are written out, place by place."""


@dataclass(frozen=True)
class Sizes:
    """Of each of the ``draws``: ``past`` batches and one more of ``prompts`` × ``group`` rollouts, of which ``judged`` of
    each prompt are judged."""

    prompts: int = 24
    group: int = 8
    past: int = 4
    judged: int = 4
    samples: int = 32
    few: int = 4
    seed: int = 0
    draws: int = 4

    def seed_of(self, draw: int) -> int:
        """Far enough from the next draw's that all their batches differ."""
        return self.seed + 100 * draw


GIVEN = {
    "prompts": "questions of a batch",
    "past": "past steps of a draw",
    "judged": "judged rollouts of each prompt",
    "draws": "draws of questions and rollouts",
}
"""Sizes that the command line may give."""

QUICK = Sizes(prompts=8, group=4, past=1, judged=2, draws=2)
QUICK_TRAINING = CleanTraining(steps=120)
DEFAULT_FAMILIES = ["sums", "sorting", "own_sums", "multiples", "programs", "chains"]


def prepare(family: Family, model: Any, sizes: Sizes, training: CleanTraining, store: Store, draw: int) -> Judged:
    """Rollouts and references of one draw, from the store where it has them."""
    actor, first = Actor(family, model, load_tokenizer(family.model)), sizes.seed_of(draw)
    questions = family.problems("val", sizes.prompts * (sizes.past + 1), first)
    marked = Store(store.folder / folder_name(family, training))
    batches = [
        sample_batch(
            actor,
            questions[i * sizes.prompts : (i + 1) * sizes.prompts],
            sizes.group,
            first + 1 + i,
            marked,
            f"rollouts_{i}",
        )
        for i in range(sizes.past + 1)
    ]
    segments = [config_of("default").build_segmenter()(batch.rows.rollouts) for batch in batches]
    at = [row for row in range(sizes.prompts * sizes.group) if row % sizes.group < sizes.judged]
    reference = reference_values(
        actor, batches[-1], segments[-1], at, sizes.samples, sizes.few, first + 1000, marked
    )
    bench = Workbench(actor, batches, segments, reference)
    return Judged(bench, at, reference, draw, _mistakes(bench, at))


def _mistakes(bench: Workbench, at: list[int]) -> dict[int, int]:
    batch, counts = bench.batches[-1], bench.segments[-1].num_segments.tolist()
    texts, outcomes = batch.rows.rollouts.texts, batch.rows.rollouts.outcomes.tolist()
    found = {}
    for row in at:
        mistake = bench.actor.family.first_mistake(batch.questions[row], texts[row])
        if outcomes[row] == 0 and mistake is not None and counts[row] > 1:
            found[row] = min(mistake, counts[row] - 1)
    return found


def judge(draws: Sequence[Judged], values: Sequence[np.ndarray]) -> dict[str, Interval]:
    """All measures of one estimator's values, (B, S) for each draw."""
    parts = [own.compared(found) for own, found in zip(draws, values, strict=True)]
    right = np.concatenate([part[2] for part in parts])
    found = {}
    for at, name in enumerate(("value", "delta")):
        pairs = Pairs.joined([part[at] for part in parts])
        found |= {
            f"pearson_{name}": pearson(pairs),
            f"spearman_{name}": spearman(pairs),
            f"rmse_{name}": rmse(pairs),
        }
        found |= {f"pearson_{name}/correct": pearson(pairs.where(right))}
        found |= {f"pearson_{name}/wrong": pearson(pairs.where(~right))}
    blamed = [_blamed(own, found) for own, found in zip(draws, values, strict=True)]
    return found | {"blame": mean(*(np.concatenate(column) for column in zip(*blamed, strict=True)))}


def _blamed(judged: Judged, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``blame`` of each wrong trace, and its prompt."""
    counts = judged.bench.segments[-1].num_segments.tolist()
    found = []
    for row, mistake in judged.mistakes.items():
        path = np.append(values[row, : counts[row]], judged.outcomes[row])
        found.append(blame(np.diff(path), mistake))
    return np.array(found), judged.prompts(np.array(list(judged.mistakes), dtype=np.int64))


def ceilings(draws: Sequence[Judged]) -> dict[str, Interval]:
    """What the true values would reach, and the reference's standard error (root mean square)."""
    columns = []
    for own in draws:
        (rows, states), truth, noise = own.places, own.reference.values, own.reference.noise
        deltas = truth[rows, states] - truth[rows, states - 1]
        columns.append(
            (truth[rows, states], noise[rows, states], deltas, noise[rows, states] + noise[rows, states - 1])
        )
    values, noise, deltas, noise_of_deltas = (np.concatenate(column) for column in zip(*columns, strict=True))
    numbers = {
        "ceiling_value": ceiling(values, noise),
        "ceiling_delta": ceiling(deltas, noise_of_deltas),
        "reference_standard_error": float(np.sqrt(noise.mean())),
        "accuracy": float(np.mean([own.outcomes.mean() for own in draws])),
        "boundaries": float(len(values)),
    }
    return {name: {"value": x, "low": x, "high": x} for name, x in numbers.items()}


def compact(judged: Judged, estimates: dict[str, np.ndarray]) -> dict[str, Any]:
    """Places of a draw as short lines: a JSON list of numbers would take a line each."""
    rows, states = judged.places
    columns = [judged.reference.values, *(estimates[name] for name in KEPT)]
    lines = [
        f"{row} {k} {judged.outcomes[row]:.0f} " + " ".join(f"{x[row, k]:.3f}" for x in columns)
        for row, k in zip(rows, states, strict=True)
    ]
    start = [f"{row} 0 " + " ".join(f"{x[row, 0]:.3f}" for x in columns) for row in judged.at]
    names = ["row", "state", "outcome", "reference", *KEPT]
    return {"columns": names, "places": lines, "prompts": start, "first_mistakes": str(judged.mistakes)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="also what limits the default, per family: other features, windows, fits",
    )
    parser.add_argument("--families", nargs="+", choices=RIGHT_OR_WRONG, default=DEFAULT_FAMILIES, metavar="NAME")
    parser.add_argument(
        "--estimators", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS), metavar="NAME"
    )
    parser.add_argument("--steps", type=int, default=CleanTraining.steps, help="training steps of the clean model")
    for name, meaning in GIVEN.items():
        parser.add_argument(f"--{name}", type=int, help=f"{meaning} (default {getattr(Sizes, name)})")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1); more change the last bits")
    add_device(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and references")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON and the PNG go")
    args = parser.parse_args()
    for name in GIVEN:
        least, given = int(name != "past"), getattr(args, name)
        if given is not None and given < least:
            parser.error(f"--{name} {given}: expected {'a positive integer' if least else 'an integer from 0'}")
    if missing := set(KEPT) - set(args.estimators):
        parser.error(f"--estimators: {', '.join(sorted(missing))} must be among them")
    return args


def main() -> None:
    args = parse_arguments()
    check_device(args.device)
    torch.set_num_threads(args.threads)
    begin = time.process_time()
    sizes, training = (QUICK, QUICK_TRAINING) if args.quick else (Sizes(), CleanTraining(steps=args.steps))
    given = {name: getattr(args, name) for name in GIVEN if getattr(args, name) is not None}
    sizes = dataclasses.replace(sizes, **given)
    store = Store(args.cache / ("quick" if args.quick else "full"))
    try:
        models = load_models(store, training, {FAMILIES[name].model for name in args.families}, args.device)
    except WeightsError as error:
        raise SystemExit(f"error: {error}") from None
    settings = {
        "device": processor(args.device, "cpu"),
        "sizes": asdict(sizes),
        "training": asdict(training),
        "targets": targets_of(args.families),
    }
    seeds = [*(sizes.seed_of(draw) for draw in range(sizes.draws)), training.seed]
    summary: Summary = {}
    raw: dict[str, Any] = {}
    for name in args.families:
        draws, estimates = [], []
        for draw in range(sizes.draws):
            own = prepare(FAMILIES[name], models[FAMILIES[name].model], sizes, training, store, draw)
            draws.append(own)
            estimates.append({estimator: own.bench.values(estimator) for estimator in args.estimators})
            print(f"{name}: draw {draw + 1} of {sizes.draws}", flush=True)
        measured = ceilings(draws)
        for estimator in args.estimators:
            found = judge(draws, [own[estimator] for own in estimates])
            measured |= {f"{estimator}/{key}": entry for key, entry in found.items()}
        if args.diagnose:
            measured |= {f"diagnosis/{key}": entry for key, entry in diagnose(draws, judge).items()}
        summary |= {f"{name}/{key}": entry for key, entry in measured.items()}
        raw[name] = [compact(*pair) for pair in zip(draws, estimates, strict=True)]
        show(name, summary, args.estimators)
        # written after every family, so that an interrupted run leaves what it has, and says which families
        headline = worst(summary, list(raw))
        spent = {"families": list(raw), "cpu_seconds": time.process_time() - begin}
        entries = headline | without_unknown(summary)
        write_record(args.output, settings | spent, entries, raw, seeds=seeds, shown=list(headline))
        draw_picture(picture_of(args.output), summary, list(raw), args.estimators)


if __name__ == "__main__":
    main()
