"""Steps of few prompts with many rollouts each, and of many prompts with few, made of the same rollouts; their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from lab.rollouts import Actor
from lab.store import Store
from learn.credit import WITHOUT_SEGMENTS
from learn.systems import CREDIT, System
from rich.progress import track

from grads.asking import Asked
from grads.methods import per_segment
from grads.traces import Pieces, Traces, build_pieces, build_traces, make_sketch, piece_key, sample, spans_of
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.values.calibration import OutcomeCalibrator

PROMPTS, ROLLOUTS = 16, 8
"""Of a block: its questions, and the rollouts of each."""

GROUPS = (8, 4, 2, 1)
STEP = PROMPTS * min(GROUPS)
"""Rollouts of a step; a block has as many steps in every shape."""


def shape_name(group: int) -> str:
    """Prompts x rollouts of a step with groups of this size."""
    return f"{STEP // group}x{group}"


def steps_of(block: int, group: int) -> list[tuple[list[int], slice]]:
    """Questions of each step of a block, and which of their rollouts it has."""
    prompts = STEP // group
    firsts = range(block * PROMPTS, (block + 1) * PROMPTS, prompts)
    slices = [slice(start, start + group) for start in range(0, ROLLOUTS, group)]
    return [(list(range(first, first + prompts)), own) for first in firsts for own in slices]


@dataclass(frozen=True)
class Setup:
    """All that needs the model. ``traces.rollouts[p]`` are those of question p; ``blocks`` of ``PROMPTS`` questions."""

    traces: Traces
    pieces: list[Pieces]
    asked: Asked

    @property
    def blocks(self) -> int:
        return len(self.pieces) // PROMPTS

    @property
    def rewards(self) -> np.ndarray:
        """(questions, rollouts)."""
        found = np.array([row.row.reward for row in self.traces.rows])
        return found[np.stack(self.traces.rollouts)]


def prepare(actor: Actor, blocks: int, sketch_size: int, seed: int, store: Store) -> Setup:
    """Rollouts of questions as training draws them, and their gradients, from the store where they are there."""
    questions = actor.family.problems("train", blocks * PROMPTS, seed)
    counted = sample(actor, questions, ROLLOUTS, seed + 2, store, "shape_rollouts")
    traces = build_traces(actor, questions, counted, seed)
    everything = traces.batch(list(range(len(traces.rows))), [""] * len(traces.rows))
    segments = System("").config.build_segmenter()(everything.rollouts)
    sketch = make_sketch(actor, sketch_size)
    pieces = [
        build_pieces(actor, traces, p, segments, sketch, store)
        for p in track(range(len(questions)), f"{actor.family.name}: gradients")
    ]
    return Setup(traces, pieces, Asked(actor))


@dataclass(frozen=True)
class Gradients:
    """Of every block the ``means`` (B, k) of its steps' gradients, and the ``squares`` (B,), means of ‖g‖²."""

    means: torch.Tensor
    squares: torch.Tensor


def block_gradients(setup: Setup, system: System, group: int) -> Gradients:
    """Steps in order, so that a calibrator has seen those before, as in training."""
    calibrator = system.config.build_calibrator() if system.kind == CREDIT else None
    means, squares = [], []
    for block in range(setup.blocks):
        found = [step_gradient(setup, system, *step, calibrator) for step in steps_of(block, group)]
        means.append(torch.stack(found).mean(0))
        squares.append(torch.stack(found).square().sum(1).mean())
    return Gradients(torch.stack(means), torch.stack(squares))


def step_gradient(
    setup: Setup, system: System, questions: Sequence[int], own: slice, calibrator: OutcomeCalibrator | None
) -> torch.Tensor:
    """(k,): mean over the step's rollouts of Σ A ∇ log π(segment) over their segments."""
    chosen = [int(i) for p in questions for i in setup.traces.rollouts[p][own]]
    group = len(chosen) // len(questions)
    rows = setup.traces.batch(chosen, [f"{p}" for p in questions for _ in range(group)])
    config = system.config
    segments = config.build_segmenter()(rows.rollouts)
    if system.kind == CREDIT:
        probed = setup.asked.probed(rows, segments, config)
        credit = assign_credit(rows.rollouts, config, segments=segments, probed=probed, calibrator=calibrator)
        advantages = credit.advantages
    else:
        advantages = WITHOUT_SEGMENTS[system.kind](rows.rollouts)
    table = per_segment(advantages, segments)
    total = torch.zeros(setup.pieces[0].sketches.shape[1])
    for row, i in enumerate(chosen):
        response, pieces = setup.traces.rows[i].response, setup.pieces[questions[row // group]]
        at = [pieces.number[piece_key(response, span)] for span in spans_of(segments, row, len(response))]
        total += table[row, : len(at)] @ pieces.sketches[at]
    return total / len(chosen)


@dataclass(frozen=True)
class Products:
    """Products of the blocks' means (B, B) with each other (``own``) and with those of the reference (``towards``), and
    ``squares`` (B,)."""

    own: np.ndarray
    towards: np.ndarray
    squares: np.ndarray


def products(found: Gradients, reference: Gradients) -> Products:
    means, others = found.means.double(), reference.means.double()
    return Products((means @ means.T).numpy(), (means @ others.T).numpy(), found.squares.double().numpy())


@dataclass(frozen=True)
class Quality:
    """``signal``: (E g · ∇)²; ``variance``: tr Cov(g), prompts drawn too; ``cosine`` of E g and ∇."""

    signal: float
    variance: float
    cosine: float

    @property
    def snr(self) -> float:
        return self.signal / self.variance


def quality(found: Products, reference: Products, counts: np.ndarray) -> Quality:
    """With block b counted ``counts[b]`` times. Every product is of two different blocks; NaN for the cosine where a squared
    length cannot be told from 0."""
    along, square, length = (_across(table, counts) for table in (found.towards, found.own, reference.own))
    variance = float(counts @ found.squares / counts.sum()) - square
    cosine = along / np.sqrt(square * length) if min(square, length) > 0 else np.nan
    return Quality(along**2, variance, float(cosine))


def _across(table: np.ndarray, counts: np.ndarray) -> float:
    """Mean of the products of two different blocks, one that is drawn twice never with itself; NaN of a single one."""
    pairs = counts.sum() ** 2 - (counts**2).sum()
    total = counts @ table @ counts - counts**2 @ table.diagonal()
    return float(total / pairs) if pairs else np.nan
