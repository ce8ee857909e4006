"""A family of the gradient benchmark, with what verl's estimators read: rollouts, log-probs, Σ π², past steps.

Stages are shared with ``benchmarks/gradient.py`` through the store, gradients of distinct segments excepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from grads.asking import Asked
from grads.moments import Reference
from grads.sketch import Sketch
from grads.stage import Sizes, build_windows, draw_rollouts, success
from grads.traces import Traces, build_traces, make_sketch, reference_gradient
from lab.rollouts import Actor
from lab.store import Store

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.tiny.reasoner import MAX_RESPONSE_TOKENS

ROWS = 32


@dataclass(frozen=True)
class Ready:
    """``squares[i]`` (length of trace i,) is Σ_v π(v | o_<t)²; ``greedy[p]`` the reward of prompt p's greedy rollout."""

    sizes: Sizes
    actor: Actor
    traces: Traces
    squares: list[torch.Tensor]
    reference: Reference
    prompt_means: torch.Tensor
    greedy: list[float]
    windows: list[dict[str, dict[str, Any]]]
    asked: Asked
    sketch: Sketch

    def step(self, number: int) -> tuple[PromptedRollouts, list[int]]:
        """The rows of a step, prompts × group, and the trace of each."""
        group = self.sizes.group
        span = slice(number * group, (number + 1) * group)
        chosen = [int(i) for own in self.traces.rollouts for i in own[span]]
        return self.traces.batch(chosen, [f"{p}" for p in range(self.sizes.prompts) for _ in range(group)]), chosen


def get_ready(actor: Actor, sizes: Sizes, store: Store) -> Ready:
    """All that needs the model but the steps' own gradients; from the store where it is there."""
    name, seed, drawn = actor.family.name, sizes.seed, draw_rollouts(actor, sizes, store)
    chosen, rest, counted, samples = drawn.chosen, drawn.rest, drawn.counted, drawn.samples
    traces = build_traces(actor, chosen, counted, seed)
    print(f"{name}: {len(traces.rows)} distinct traces", flush=True)
    sketch = make_sketch(actor, sizes.sketch)
    halves = []
    for p, question in enumerate(chosen):
        own = [reference_gradient(actor, question, half[p], sketch, store, f"gradient_{p}") for half in samples]
        halves.append([found["sketch"] for found in own])
        print(f"{name}: reference of prompt {p + 1}/{len(chosen)}", flush=True)
    reference = Reference(*(torch.stack([own[i] for own in halves]) for i in (0, 1)))
    means = [np.mean([success(actor, q, own[p]) for own in samples]) for p, q in enumerate(chosen)]
    asked = Asked(actor)
    windows = build_windows(actor, rest, sizes, asked, store)
    squares = [found for first in range(0, len(traces.rows), ROWS) for found in _squares(actor, traces, first)]
    greedy = [greedy_reward(actor, question) for question in chosen]
    return Ready(
        sizes, actor, traces, squares, reference, torch.tensor(means).float(), greedy, windows, asked, sketch
    )


@torch.no_grad()
def _squares(actor: Actor, traces: Traces, first: int) -> list[torch.Tensor]:
    rows = traces.rows[first : first + ROWS]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True)
    squares = actor.model(ids, use_cache=False).logits.softmax(-1).square().sum(-1)
    return [
        own[len(row.prompt) - 1 : len(row.prompt) + len(row.response) - 1]
        for own, row in zip(squares, rows, strict=True)
    ]


@torch.no_grad()
def greedy_reward(actor: Actor, question: Any) -> float:
    """Of the rollout that takes the likeliest token everywhere, which ``remax`` measures from."""
    tokens = list(actor.prompt(question))
    start = len(tokens)
    while len(tokens) - start < MAX_RESPONSE_TOKENS:
        tokens.append(int(actor.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        if tokens[-1] == actor.model.config.eos_token_id:
            break
    return actor.family.reward(question, actor.text(tokens[start:]))
