"""Is a tree of rollouts worth its tokens? Rollouts that fork once, against as many tokens of independent rollouts.

As benchmarks/gradient.py, with the default's baseline of one number a trace (``baseline: trace``, ``scale: none``), which is
the same for all: of the rollout's group without the rollout and all that forked from it. A rollout forks before a fixed
segment (``early``, ``middle``, ``late``), or at the first boundary where the next token is open (``unsure``), and has one or
three siblings from there. Segments before the fork are credited with the mean reward of all that follow; those after it with
their own.

    tree      all leaves train; a leaf of n counts 1/n
    sibling   the same, and a leaf is measured from the mean of the baseline and its siblings' reward
    budget    siblings are only listened to: what continuations at chosen boundaries give, without training on them

``per_token/…`` is signal over variance for each generated token, independent rollouts = 1: above 1, the tree is the better way
to spend them. ``tokens/…`` is what a tree costs, a rollout = 1. ``bias/…`` as in gradient.py. Stages are kept in ``--cache``: an
interrupted run goes on there. Ten to thirty minutes a family.

    OMP_NUM_THREADS=1 python benchmarks/forks.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from gradient import CACHE, QUICK, QUICK_TRAINING, interval
from grads.forking import SIBLINGS, Forks, fork, places
from grads.moments import Moments, Reference, draws, moments
from grads.stage import Sizes, draw_rollouts
from grads.step import config
from grads.traces import (
    Pieces,
    Traces,
    build_pieces,
    build_traces,
    make_sketch,
    piece_key,
    reference_gradient,
    spans_of,
)
from lab.baseline import whole_baseline
from lab.models import CleanTraining, folder_name, load_models, load_tokenizer
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES, RIGHT_OR_WRONG
from record import Summary, write_record

from rredcot_plugin.types import Segments

OUTPUT = Path(__file__).parent / "results" / "forks.json"
SIZES = Sizes(prompts=12, steps=48, candidates=256, sketch=4096)
COUNTS = (1, SIBLINGS)
WAYS = ("tree", "sibling", "budget")


@dataclass(frozen=True)
class Setup:
    """Rollouts of every prompt with the gradients of their segments, and each rollout's baseline (P, N·G)."""

    sizes: Sizes
    actor: Actor
    traces: Traces
    segments: Segments
    pieces: list[Pieces]
    reference: Reference
    baselines: np.ndarray

    def rollout(self, prompt: int, visit: int) -> tuple[float, list[int]]:
        """Reward of a rollout, and the numbers of its segments."""
        row, own = self.traces.rows[i := int(self.traces.rollouts[prompt][visit])], self.pieces[prompt].number
        spans = spans_of(self.segments, i, len(row.response))
        return row.row.reward, [own[piece_key(row.response, span)] for span in spans]


def prepare(actor: Actor, sizes: Sizes, store: Store) -> Setup:
    drawn, sketch = draw_rollouts(actor, sizes, store), make_sketch(actor, sizes.sketch)
    traces = build_traces(actor, drawn.chosen, drawn.counted, sizes.seed)
    segments = config().build_segmenter()(
        traces.batch(list(range(len(traces.rows))), [""] * len(traces.rows)).rollouts
    )
    pieces, halves = [], []
    for p, question in enumerate(drawn.chosen):
        pieces.append(build_pieces(actor, traces, p, segments, sketch, store))
        halves.append(
            [reference_gradient(actor, question, own[p], sketch, store, f"gradient_{p}") for own in drawn.samples]
        )
        print(f"{actor.family.name}: prompt {p + 1}/{len(drawn.chosen)}", flush=True)
    reference = Reference(*(torch.stack([own[half]["sketch"] for own in halves]) for half in (0, 1)))
    return Setup(sizes, actor, traces, segments, pieces, reference, baselines_of(traces, sizes))


def baselines_of(traces: Traces, sizes: Sizes) -> np.ndarray:
    """``baseline: trace`` of every rollout in its step."""
    found = np.zeros((sizes.prompts, sizes.steps * sizes.group))
    for n in range(sizes.steps):
        span = slice(n * sizes.group, (n + 1) * sizes.group)
        chosen = [int(i) for own in traces.rollouts for i in own[span]]
        rows = traces.batch(chosen, [f"{p}" for p in range(sizes.prompts) for _ in range(sizes.group)])
        table = whole_baseline(rows.rollouts, config().build_segmenter()(rows.rollouts))
        found[:, span] = table[:, 0].reshape(sizes.prompts, sizes.group).numpy()
    return found


Credit = tuple[int, float]
"""Number of a segment, siblings' after those of the rollouts, and its advantage."""


def credit(way: str, setup: Setup, prompt: int, visit: int, forks: Forks, count: int) -> Iterator[Credit]:
    """Of the segments of one rollout and of ``count`` siblings."""
    reward, own = setup.rollout(prompt, visit)
    base, at = float(setup.baselines[prompt, visit]), forks.at[visit]
    others = forks.siblings[visit][:count]
    rewards = [reward, *forks.rewards[others]]
    mean, share = float(np.mean(rewards)), 1.0 if way == "budget" else 1 / len(rewards)
    after = at if others else 0
    yield from ((piece, mean - base) for piece in own[:after])
    leaves = [
        own[after:],
        *([first + len(setup.pieces[prompt].number) for first in forks.pieces[f]] for f in others),
    ]
    for leaf, (result, numbers) in enumerate(zip(rewards, leaves, strict=True)):
        if way == "budget" and leaf:
            return
        from_ = base
        if way == "sibling" and others:
            from_ = (base + (sum(rewards) - result) / len(others)) / 2
        yield from ((piece, share * (result - from_)) for piece in numbers)


def gradients(setup: Setup, way: str, forks: list[Forks], count: int) -> torch.Tensor:
    """(N, P, k) sketches of the groups' gradients."""
    group, found = setup.sizes.group, []
    for p, own in enumerate(forks):
        weights = torch.zeros(setup.sizes.steps, len(setup.pieces[p].number) + len(own.sketches))
        for visit in range(weights.shape[0] * group):
            for piece, advantage in credit(way, setup, p, visit, own, count):
                weights[visit // group, piece] += advantage / group
        found.append(weights @ torch.cat([setup.pieces[p].sketches, own.sketches]))
    return torch.stack(found, dim=1)


def tokens(setup: Setup, forks: list[Forks], count: int) -> float:
    """Generated for a rollout and its siblings, a rollout = 1."""
    plain = sum(len(setup.traces.rows[int(i)].response) for own in setup.traces.rollouts for i in own)
    more = sum(own.tokens[siblings[:count]].sum() for own in forks for siblings in own.siblings)
    return float(1 + more / plain)


def per_token(found: list[Moments], plain: list[Moments], cost: float) -> dict[str, float]:
    return interval(np.array([own.snr / other.snr / cost for own, other in zip(found, plain, strict=True)]))


def measure(setup: Setup, store: Store) -> Summary:
    """All ways at all places, printed as they come."""
    sizes, sketch = setup.sizes, make_sketch(setup.actor, setup.sizes.sketch)
    drawn = list(draws(sizes.steps, sizes.prompts, sizes.resamples, sizes.seed))
    summary: Summary = {}
    plain: list[Moments] = []
    for number, (name, place) in enumerate(places(setup.traces, setup.segments).items()):
        forks = [
            fork(setup.actor, setup.traces, setup.segments, p, place, sketch, store, sizes.seed + 2000 + number)
            for p in range(sizes.prompts)
        ]
        plain = plain or moments(gradients(setup, "tree", forks, 0), setup.reference, drawn)
        for count in COUNTS:
            cost = tokens(setup, forks, count)
            summary[f"tokens/{name}_{count}"] = {"value": cost, "low": cost, "high": cost}
            for way in WAYS:
                found = moments(gradients(setup, way, forks, count), setup.reference, drawn)
                key = f"{way}_{name}_{count}"
                summary[f"per_token/{key}"] = per_token(found, plain, cost)
                summary[f"bias/{key}"] = interval(np.array([own.bias for own in found]))
                entry = summary[f"per_token/{key}"]
                print(
                    f"{setup.actor.family.name} {key:20s} {cost:5.2f} tokens, signal over variance per token "
                    f"{entry['value']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}], bias {found[0].bias:.2f}",
                    flush=True,
                )
    summary["bias/independent"] = interval(np.array([own.bias for own in plain]))
    return summary


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument(
        "--families", nargs="+", choices=RIGHT_OR_WRONG, default=["habits", "chains", "own_sums"], metavar="NAME"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    begin = time.process_time()
    sizes, training = (QUICK, QUICK_TRAINING) if args.quick else (SIZES, CleanTraining())
    store = Store(args.cache / ("quick" if args.quick else "full"))
    models = load_models(store, training, {FAMILIES[name].model for name in args.families})
    summary: Summary = {}
    for name in args.families:
        family = FAMILIES[name]
        own = Store(store.folder / folder_name(family, training))
        setup = prepare(Actor(family, models[family.model], load_tokenizer(family.model)), sizes, own)
        summary |= {f"{name}/{key}": entry for key, entry in measure(setup, own).items()}
        settings = {"sizes": asdict(sizes), "families": args.families, "cpu_seconds": time.process_time() - begin}
        # written after every family, so that an interrupted run leaves what it has
        write_record(args.output, settings, summary, {}, seeds=[sizes.seed], shown=[])


if __name__ == "__main__":
    main()
