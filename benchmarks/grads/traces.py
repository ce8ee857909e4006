"""The distinct traces of every prompt: sampled with counts, encoded, cut into segments, their gradients sketched."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lab.family import Question
from lab.rollouts import Actor
from lab.store import Store

from grads.sketch import Sketch, coordinates, segment_gradients, weighted_gradient
from grads.tree import Counted, counted_continuations
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.offline.encode import EncodedRow, step_rows
from rredcot_plugin.offline.input_columns import Row
from rredcot_plugin.types import Segments

SIGNAL_ROWS = 16


@dataclass(frozen=True)
class Traces:
    """Distinct traces of all prompts, in one numbering; ``spans[i]`` are the segments of trace i as token ranges.

    ``rollouts[p]`` are the traces of prompt p's rollouts in the order in which they were "sampled" (N·G,).
    """

    questions: list[Question]
    rows: list[EncodedRow]
    log_probs: list[torch.Tensor]
    entropies: list[torch.Tensor]
    rollouts: list[np.ndarray]

    def batch(self, chosen: list[int], groups: list[str]) -> PromptedRollouts:
        """A training step's rows; ``groups[i]`` is the group of ``chosen[i]``."""
        rows = [
            dataclasses.replace(self.rows[i], row=dataclasses.replace(self.rows[i].row, group=group))
            for i, group in zip(chosen, groups, strict=True)
        ]
        batch = step_rows(rows)
        log_probs, entropies = (torch.zeros(batch.rollouts.token_ids.shape) for _ in range(2))
        for row, i in enumerate(chosen):
            log_probs[row, : len(self.log_probs[i])] = self.log_probs[i]
            entropies[row, : len(self.entropies[i])] = self.entropies[i]
        rollouts = dataclasses.replace(batch.rollouts, log_probs=log_probs, entropies=entropies)
        return dataclasses.replace(batch, rollouts=rollouts)


def sample(
    actor: Actor, questions: list[Question], copies: int, seed: int, store: Store, name: str
) -> list[Counted]:
    """``copies`` rollouts of each question, with counts; from the store where it has them."""
    prompts = [actor.prompt(question) for question in questions]
    settings = [actor.family.name, [q.text for q in questions], copies, seed]
    budgets = [actor.family.max_response_tokens] * len(prompts)
    made = store.json(name, settings, lambda: counted_continuations(actor.model, prompts, budgets, copies, seed))
    actor.judge_ahead(questions, [[tokens for tokens, _ in own] for own in made])
    return [[(tokens, count) for tokens, count in own] for own in made]


def encode(actor: Actor, question: Question, response: list[int]) -> EncodedRow:
    text, spans = actor.encoder.table.align(np.array(response, dtype=np.int64))
    row = Row(0, question.text, text, actor.family.reward(question, text), "", ground_truth=question.answer)
    return EncodedRow(row, list(actor.prompt(question)), response, text, spans, "", True)


def build_traces(actor: Actor, questions: list[Question], counted: list[Counted], seed: int) -> Traces:
    """Traces with log-probs and entropies; the counts in a random order, which makes rollouts of them again."""
    rng = np.random.default_rng(seed)
    rows: list[EncodedRow] = []
    rollouts = []
    for question, own in zip(questions, counted, strict=True):
        numbers = np.repeat(len(rows) + np.arange(len(own)), [count for _, count in own])
        rollouts.append(rng.permutation(numbers))
        rows += [encode(actor, question, tokens) for tokens, _ in own]
    found: list[Any] = []
    for first in range(0, len(rows), SIGNAL_ROWS):
        part = rows[first : first + SIGNAL_ROWS]
        found += actor.scorer.signals([row.tokens for row in part], [len(row.prompt) for row in part])
    return Traces(questions, rows, [f[0] for f in found], [f[1] for f in found], rollouts)


def spans_of(segments: Segments, row: int, length: int) -> list[tuple[int, int]]:
    starts = segments.starts[row, : int(segments.num_segments[row])].tolist()
    return list(itertools.pairwise([*starts, length]))


@dataclass(frozen=True)
class Pieces:
    """Distinct (prefix, segment) pairs of one prompt with their sketched gradients (D, k)."""

    number: dict[tuple[int, ...], int]
    """Tokens of the prefix and the segment, and where the segment begins last → which pair."""
    sketches: torch.Tensor


def piece_key(response: list[int], span: tuple[int, int]) -> tuple[int, ...]:
    return (*response[: span[1]], span[0])


def build_pieces(
    actor: Actor, traces: Traces, prompt: int, segments: Segments, sketch: Sketch, store: Store
) -> Pieces:
    """Gradients of all segments of a prompt's traces; a pair that traces share is taken from the first of them.

    ``segments`` are those of all traces.
    """
    number: dict[tuple[int, ...], int] = {}
    wanted = []
    for i in np.unique(traces.rollouts[prompt]).tolist():
        response = traces.rows[i].response
        new = [span for span in spans_of(segments, i, len(response)) if piece_key(response, span) not in number]
        number |= {piece_key(response, span): len(number) + at for at, span in enumerate(new)}
        if new:
            wanted.append((traces.rows[i], new))

    def make() -> dict[str, torch.Tensor]:
        parts = [sketch(segment_gradients(actor.model, row.prompt, row.response, spans)) for row, spans in wanted]
        return {"sketches": torch.cat(parts).cpu()}

    settings = [sketch.identity, traces.questions[prompt].text, [list(key) for key in number]]
    return Pieces(number, store.tensors("pieces", settings, make)["sketches"])


def reference_gradient(
    actor: Actor, question: Question, counted: Counted, sketch: Sketch, store: Store, name: str
) -> dict[str, torch.Tensor]:
    """Leave-one-out REINFORCE on one large group: ``sketch`` (k,) and ``exact`` (n,), scaled as the sketch; unbiased."""

    def make() -> dict[str, torch.Tensor]:
        rows = [encode(actor, question, tokens) for tokens, _ in counted]
        rewards, counts = np.array([row.row.reward for row in rows]), np.array([count for _, count in counted])
        mean = (rewards * counts).sum() / counts.sum()
        weights = counts * (rewards - mean) / (counts.sum() - 1)
        exact = weighted_gradient(actor.model, rows[0].prompt, [row.response for row in rows], weights.tolist())
        return {"exact": sketch.scaled(exact).cpu(), "sketch": sketch(exact).cpu()}

    return store.tensors(name, [sketch.identity, question.text, [[list(t), c] for t, c in counted]], make)


def make_sketch(actor: Actor, size: int, scale: torch.Tensor | None = None) -> Sketch:
    return Sketch(coordinates(actor.model), size, device=actor.model.device, scale=scale)
