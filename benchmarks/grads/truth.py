"""Values of states by Monte Carlo: one pool of continuations for each distinct state of the measured traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lab.rollouts import Actor
from lab.sampling import Prefix
from lab.store import Store

from grads.traces import Traces, spans_of
from grads.tree import counted_continuations
from rredcot_plugin.types import Segments

STATES_PER_PART = 256
"""States whose continuations are stored together; an interrupted run loses at most one such part."""

State = Prefix
"""Prompt and response so far, as tokens."""


@dataclass(frozen=True)
class Pool:
    """``rewarded[state]`` of ``size`` continuations were right. Rewards are 0 and 1."""

    rewarded: dict[State, int]
    size: int

    def values(self, states: list[State]) -> np.ndarray:
        return np.array([self.rewarded[state] for state in states]) / self.size

    def few(self, states: list[State], samples: int, rng: np.random.Generator) -> np.ndarray:
        """Means of ``samples`` of the pool's continuations, drawn anew for each place."""
        means: np.ndarray = self.rewards(states, np.full(len(states), samples), rng) / samples
        return means

    def rewards(self, states: list[State], samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """How many of ``samples[i]`` of the pool's continuations of state i were right, drawn anew for each place."""
        good = np.array([self.rewarded[state] for state in states], dtype=np.int64)
        drawn: np.ndarray = rng.hypergeometric(good, self.size - good, samples)
        return drawn


def build_pool(actor: Actor, traces: Traces, segments: Segments, size: int, seed: int, store: Store) -> Pool:
    """Of every state of every trace that was rolled out; nothing with ``size`` 0."""
    if not size:
        return Pool({}, 0)
    question, spent = {}, {}
    for prompt, rolled in enumerate(traces.rollouts):
        for i in np.unique(rolled).tolist():
            row = traces.rows[i]
            for start, _ in spans_of(segments, i, len(row.response)):
                state = (*row.prompt, *row.response[:start])
                question[state], spent[state] = traces.questions[prompt], start
    states = list(question)
    rewarded: dict[State, int] = {}
    for first in range(0, len(states), STATES_PER_PART):
        part = states[first : first + STATES_PER_PART]

        def make(part: list[State] = part, seed: int = seed + first) -> list[int]:
            budgets = [actor.family.max_response_tokens - spent[state] for state in part]
            found = counted_continuations(actor.model, part, budgets, size, seed)
            whole = [
                [([*_own(s, spent), *t], count) for t, count in own] for s, own in zip(part, found, strict=True)
            ]
            asked = [question[state] for state in part]
            actor.judge_ahead(asked, [[tokens for tokens, _ in own] for own in whole])
            return [
                sum(count * round(actor.family.reward(q, actor.text(tokens))) for tokens, count in own)
                for q, own in zip(asked, whole, strict=True)
            ]

        settings = [actor.family.name, [list(state) for state in part], size, seed + first]
        rewarded |= dict(zip(part, store.json("pool", settings, make), strict=True))
    return Pool(rewarded, size)


def _own(state: State, spent: dict[State, int]) -> list[int]:
    return list(state[len(state) - spent[state] :])
