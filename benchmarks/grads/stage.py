"""What the steps of a family are made of: all that needs the model, in stages that survive an interruption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lab.family import Question
from lab.rollouts import Actor
from lab.store import Store

from grads.adam import adam_scale
from grads.asking import Asked
from grads.moments import Reference
from grads.step import FITTED, LATER, config, fit_values
from grads.traces import (
    Pieces,
    Traces,
    build_pieces,
    build_traces,
    make_sketch,
    reference_gradient,
    sample,
)
from grads.tree import Counted
from grads.truth import Pool, build_pool
from rredcot_plugin.types import Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator

PAST = 4
"""Past steps in the running mean of a prompt, and in the calibrator's window unless told."""


@dataclass(frozen=True)
class Sizes:
    """``steps`` of ``prompts`` × ``group`` rollouts; ``reference`` times as many for the reference.

    Prompts are the first of ``candidates`` questions whose success in ``pilot`` rollouts lies between ``low`` and
    ``high``. ``windows``: how many different pasts the steps have in turn, of ``past`` steps each. ``pool``: continuations
    of every state; 0 leaves out all credit that needs them. ``adam``: every coordinate as Adam scales it (grads/adam.py).
    """

    prompts: int = 16
    group: int = 8
    steps: int = 64
    reference: int = 4
    windows: int = 4
    past: int = PAST
    candidates: int = 64
    pilot: int = 64
    low: float = 0.2
    high: float = 0.8
    pool: int = 64
    sketch: int = 8192
    resamples: int = 200
    seed: int = 0
    adam: bool = False


@dataclass(frozen=True)
class Setup:
    """What the steps of a family are made of. ``halves[p]``: both references of prompt p, exact and sketched."""

    sizes: Sizes
    actor: Actor
    traces: Traces
    segments: Segments
    pieces: list[Pieces]
    halves: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
    prompt_means: torch.Tensor
    pool: Pool
    windows: list[dict[str, dict[str, Any]]]
    asked: Asked

    @property
    def reference(self) -> Reference:
        return Reference(*(torch.stack([own[half]["sketch"] for own in self.halves]) for half in (0, 1)))

    @property
    def exact_reference(self) -> Reference:
        return Reference(*(torch.stack([own[half]["exact"] for own in self.halves]) for half in (0, 1)))


def choose(questions: list[Question], pilot: list[Counted], actor: Actor, sizes: Sizes) -> list[Question]:
    """The first questions of medium success.

    Raises:
        ValueError: fewer of them than are needed.
    """
    rates = [success(actor, q, own) for q, own in zip(questions, pilot, strict=True)]
    kept = [q for q, rate in zip(questions, rates, strict=True) if sizes.low <= rate <= sizes.high]
    if len(kept) < sizes.prompts:
        raise ValueError(
            f"{actor.family.name}: {len(kept)} of candidates={len(questions)} questions have a success rate between "
            f"{sizes.low} and {sizes.high}, prompts={sizes.prompts} are needed; use more candidates"
        )
    return kept[: sizes.prompts]


def success(actor: Actor, question: Question, counted: Counted) -> float:
    total = sum(count for _, count in counted)
    return sum(count * actor.family.reward(question, actor.text(tokens)) for tokens, count in counted) / total


@dataclass(frozen=True)
class Drawn:
    """``chosen`` questions with the rollouts of the steps (``counted``) and both reference ``samples``; the past steps'
    questions are ``rest``."""

    chosen: list[Question]
    rest: list[Question]
    counted: list[Counted]
    samples: list[list[Counted]]


def draw_rollouts(actor: Actor, sizes: Sizes, store: Store) -> Drawn:
    """What every measurement on the family's steps is made of, from the store where it is there."""
    seed, others = sizes.seed, sizes.windows * sizes.past * sizes.prompts
    questions = actor.family.problems("val", sizes.candidates + others, seed)
    candidates, rest = questions[: sizes.candidates], questions[sizes.candidates :]
    chosen = choose(candidates, sample(actor, candidates, sizes.pilot, seed + 1, store, "pilot"), actor, sizes)
    counted = sample(actor, chosen, sizes.steps * sizes.group, seed + 2, store, "rollouts")
    half = sizes.reference * sizes.steps * sizes.group // 2
    samples = [sample(actor, chosen, half, seed + 3 + i, store, f"reference_{i}") for i in (0, 1)]
    return Drawn(chosen, rest, counted, samples)


def prepare(actor: Actor, sizes: Sizes, store: Store) -> Setup:
    """All that needs the model, from the store where it is there."""
    seed, drawn = sizes.seed, draw_rollouts(actor, sizes, store)
    chosen, rest, counted, samples = drawn.chosen, drawn.rest, drawn.counted, drawn.samples
    traces = build_traces(actor, chosen, counted, seed)
    segments = config().build_segmenter()(
        traces.batch(list(range(len(traces.rows))), [""] * len(traces.rows)).rollouts
    )
    print(f"{actor.family.name}: {len(traces.rows)} distinct traces", flush=True)
    sketch = make_sketch(actor, sizes.sketch, adam_scale(actor, chosen, counted, store) if sizes.adam else None)
    pieces, halves = [], []
    for p, question in enumerate(chosen):
        pieces.append(build_pieces(actor, traces, p, segments, sketch, store))
        first, second = (
            reference_gradient(actor, question, own[p], sketch, store, f"gradient_{p}") for own in samples
        )
        halves.append((first, second))
        print(f"prompt {p + 1}/{len(chosen)}: {len(pieces[-1].number)} segments", flush=True)
    means = [np.mean([success(actor, q, own[p]) for own in samples]) for p, q in enumerate(chosen)]
    pool = build_pool(actor, traces, segments, sizes.pool, seed + 1000, store)
    print(f"{len(pool.rewarded)} states have values", flush=True)
    asked = Asked(actor)
    windows = build_windows(actor, rest, sizes, asked, store)
    return Setup(sizes, actor, traces, segments, pieces, halves, torch.tensor(means).float(), pool, windows, asked)


def build_windows(
    actor: Actor, questions: list[Question], sizes: Sizes, asked: Asked, store: Store
) -> list[dict[str, dict[str, Any]]]:
    """What past steps on other prompts, of any success rate, leave in the calibrators."""
    counted = sample(actor, questions, sizes.group, sizes.seed + 5, store, "past")
    traces = build_traces(actor, questions, counted, sizes.seed + 1)
    found = []
    for window in range(sizes.windows):
        calibrators = {name: OutcomeCalibrator(sizes.past) for name in FITTED | LATER}
        for batch in range(sizes.past):
            first = (window * sizes.past + batch) * sizes.prompts
            at = range(first, first + sizes.prompts)
            rows = traces.batch(
                [int(i) for p in at for i in traces.rollouts[p]], [f"{p}" for p in at for _ in range(sizes.group)]
            )
            segments = config().build_segmenter()(rows.rollouts)
            for name, calibrator in calibrators.items():
                fit_values(asked, rows, segments, name, calibrator)
        found.append({name: calibrator.state_dict() for name, calibrator in calibrators.items()})
    return found
