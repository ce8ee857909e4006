"""Rollouts that fork once: where, and what is sampled there.

Where a rollout forks must be a stopping time, as a boundary must be (docs/reference/math.md): a rollout that forks because of
what it wrote later is not a sample of what follows the fork, its sibling is one, and their mean is biased.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from lab.family import Question
from lab.rollouts import Actor
from lab.sampling import continuations
from lab.store import Store

from grads.sketch import Sketch, segment_gradients
from grads.step import config
from grads.traces import Traces, encode, spans_of
from rredcot_plugin.offline.encode import EncodedRow, step_rows
from rredcot_plugin.types import Segments

SIBLINGS = 3
"""Continuations that are sampled at every fork."""

Span = tuple[int, int]
Place = Callable[[int, list[Span]], int]
"""Trace and its segments → number of the segment before which it forks; 0 where it does not."""


def places(traces: Traces, segments: Segments) -> dict[str, Place]:
    """Every way to choose, by name: at a fixed boundary, or at the first one where the next token is open."""
    usual = int(segments.num_segments.median())
    doubts = [traces.entropies[i][start] for i, start in _boundaries(traces, segments)]
    open_from = float(torch.stack(doubts).median())

    def at(number: int) -> Place:
        return lambda i, spans: number if number < len(spans) else 0

    def unsure(i: int, spans: list[Span]) -> int:
        found = (k for k in range(1, len(spans)) if traces.entropies[i][spans[k][0]] >= open_from)
        return next(found, 0)

    numbers = {"early": 0.25, "middle": 0.5, "late": 0.75}
    return {name: at(max(1, round(share * usual))) for name, share in numbers.items()} | {"unsure": unsure}


def _boundaries(traces: Traces, segments: Segments) -> Iterator[tuple[int, int]]:
    for i, row in enumerate(traces.rows):
        yield from ((i, start) for start, _ in spans_of(segments, i, len(row.response))[1:])


@dataclass(frozen=True)
class Forks:
    """Of one prompt. ``at[v]``: the segment before which rollout v forks, 0 for none; ``siblings[v]``: the forked traces;
    ``pieces[f]``: the numbers of trace f's own segments among ``sketches``; ``rewards`` and ``tokens`` of each trace's own
    part."""

    at: list[int]
    siblings: list[list[int]]
    pieces: list[list[int]]
    rewards: np.ndarray
    tokens: np.ndarray
    sketches: torch.Tensor


def fork(
    actor: Actor,
    traces: Traces,
    segments: Segments,
    prompt: int,
    place: Place,
    sketch: Sketch,
    store: Store,
    seed: int,
) -> Forks:
    """``SIBLINGS`` continuations of every rollout of a prompt that forks, with the gradients of their segments."""
    rolled, question = traces.rollouts[prompt].tolist(), traces.questions[prompt]
    spans = {i: spans_of(segments, i, len(traces.rows[i].response)) for i in set(rolled)}
    at = {i: place(i, own) for i, own in spans.items()}
    prefix = {i: tuple(traces.rows[i].response[: spans[i][k][0]]) for i, k in at.items() if k}
    wanted = Counter(prefix[i] for i in rolled if i in prefix)
    drawn = {state: iter(own) for state, own in _sampled(actor, question, wanted, store, seed).items()}
    number: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    siblings = []
    for i in rolled:
        own = [(prefix[i], tuple(next(drawn[prefix[i]]))) for _ in range(SIBLINGS)] if i in prefix else []
        siblings.append([number.setdefault(pair, len(number)) for pair in own])
    rows = [encode(actor, question, [*before, *after]) for before, after in number]
    pieces, sketches = _pieces(actor, rows, [len(before) for before, _ in number], sketch, store)
    rewards = np.array([row.row.reward for row in rows])
    tokens = np.array([len(after) for _, after in number])
    return Forks([at[i] for i in rolled], siblings, pieces, rewards, tokens, sketches)


def _sampled(
    actor: Actor, question: Question, wanted: Counter[tuple[int, ...]], store: Store, seed: int
) -> dict[tuple[int, ...], list[list[int]]]:
    """``SIBLINGS`` independent continuations for each time that a state is wanted, states of like counts together."""
    prompt, found = actor.prompt(question), {}
    by_copies: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for state, count in wanted.items():
        by_copies[1 << (count * SIBLINGS - 1).bit_length()].append(state)
    for copies, states in by_copies.items():
        budgets = [actor.family.max_response_tokens - len(state) for state in states]

        def make(
            states: list[tuple[int, ...]] = states, budgets: list[int] = budgets, copies: int = copies
        ) -> object:
            return continuations(actor.model, [(*prompt, *state) for state in states], budgets, copies, seed)

        settings = [actor.family.name, question.text, [list(state) for state in states], copies, seed]
        found |= dict(zip(states, store.json("forks", settings, make), strict=True))
    return found


def _pieces(
    actor: Actor, rows: list[EncodedRow], first: list[int], sketch: Sketch, store: Store
) -> tuple[list[list[int]], torch.Tensor]:
    """Numbers of the segments from token ``first`` on of every trace, and the sketch of each distinct one."""
    if not rows:
        return [], torch.zeros(0, sketch.size)
    segments = config().build_segmenter()(step_rows(rows).rollouts)
    number: dict[tuple[int, ...], int] = {}
    pieces, wanted = [], []
    for f, row in enumerate(rows):
        own = [span for span in spans_of(segments, f, len(row.response)) if span[0] >= first[f]]
        if own and own[0][0] != first[f]:
            raise ValueError(f"trace {f} has no boundary at its fork, token {first[f]}: boundaries looked ahead")
        keys = [(*row.response[:end], start) for start, end in own]
        new = [span for key, span in zip(keys, own, strict=True) if key not in number]
        pieces.append([number.setdefault(key, len(number)) for key in keys])
        if new:
            wanted.append((row, new))

    def make() -> dict[str, torch.Tensor]:
        parts = [sketch(segment_gradients(actor.model, row.prompt, row.response, spans)) for row, spans in wanted]
        return {"sketches": torch.cat(parts)}

    settings = [sketch.size, list(rows[0].prompt), [list(key) for key in number]]
    return pieces, store.tensors("forked_pieces", settings, make)["sketches"]
