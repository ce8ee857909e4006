"""Every method on every step: which gradient each segment gets how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grads.estimates import all_values
from grads.later import later_credit
from grads.methods import methods
from grads.spending import spent_credit
from grads.stage import PAST, Setup
from grads.step import Step, config, places
from grads.traces import piece_key, spans_of
from grads.trials import trials
from rredcot_plugin.types import Segments


def step_of(setup: Setup, number: int) -> tuple[Step, list[int]]:
    """The step, and the trace of each of its rows."""
    sizes, traces = setup.sizes, setup.traces
    span = slice(number * sizes.group, (number + 1) * sizes.group)
    chosen = [int(i) for own in traces.rollouts for i in own[span]]
    rows = traces.batch(chosen, [f"{p}" for p in range(sizes.prompts) for _ in range(sizes.group)])
    # the four steps before, around the corner for the first ones: rollouts are exchangeable
    past = [(number - 1 - back) % sizes.steps for back in range(min(PAST, sizes.steps - 1))]
    rewards = np.array([row.row.reward for row in traces.rows])
    sums = [
        sum(rewards[own[n * sizes.group : (n + 1) * sizes.group]].sum() for n in past) for own in traces.rollouts
    ]
    step = Step(
        rows=rows,
        segments=config().build_segmenter()(rows.rollouts),
        window=setup.windows[number % len(setup.windows)],
        pool=setup.pool,
        prompt_mean=setup.prompt_means.repeat_interleave(sizes.group),
        past_sum=torch.tensor(sums).float().repeat_interleave(sizes.group),
        past_count=torch.full((len(chosen),), float(len(past) * sizes.group)),
    )
    return step, chosen


@dataclass(frozen=True)
class Credits:
    """``weights[method][p]`` (N, D_p): what each pair counts in the gradient of prompt p's group of every step.

    ``values`` holds, a row each: step, number of the state, calibrated V̂, V by Monte Carlo, V̂ from siblings, R, V̂ with
    trees; states after the prompt only, none without a pool. ``tokens[method]``: of a step with continuations, those of the rollouts = 1.
    """

    weights: dict[str, list[torch.Tensor]]
    values: np.ndarray
    tokens: dict[str, float]


def credit_steps(setup: Setup, progress: Callable[[int], None]) -> Credits:
    """Every method on every step."""
    rng = np.random.default_rng(setup.sizes.seed + 7)
    weights: dict[str, list[torch.Tensor]] = {}
    numbers: dict[Any, int] = {}
    places_found, tokens_found = [], []
    for n in range(setup.sizes.steps):
        step, chosen = step_of(setup, n)
        values = all_values(step, setup.asked, setup.sizes.past, rng)
        later = later_credit(step, values, setup.asked, setup.sizes.past)
        tables = methods(step, values) | trials(step, values) | later
        own = np.random.default_rng((setup.sizes.seed + 8, n))
        spent, tokens = spent_credit(step, tables["default_unscaled"], values["value"], own)
        tables |= spent
        tokens_found.append(tokens)
        for name, table in tables.items():
            if name not in weights:
                weights[name] = [torch.zeros(setup.sizes.steps, len(own.number)) for own in setup.pieces]
            add_weights(setup, weights[name], n, step.segments, chosen, table)
        if step.pool.size:
            places_found.append(compared(step, values, numbers, n))
        progress(n)
    mean = {name: float(np.mean([own[name] for own in tokens_found])) for name in tokens_found[0]}
    return Credits(weights, np.concatenate([np.empty((0, 7)), *places_found]), mean)


def add_weights(
    setup: Setup, weights: list[torch.Tensor], n: int, segments: Segments, chosen: list[int], table: torch.Tensor
) -> None:
    """Of a method's (B, S) in step n; a group's gradient is the mean over its rollouts."""
    group = setup.sizes.group
    for row, i in enumerate(chosen):
        response, pieces = setup.traces.rows[i].response, setup.pieces[row // group]
        for k, span in enumerate(spans_of(segments, row, len(response))):
            weights[row // group][n, pieces.number[piece_key(response, span)]] += table[row, k] / group


def compared(step: Step, values: dict[str, torch.Tensor], numbers: dict[Any, int], n: int) -> np.ndarray:
    at = step.segments.exists
    truth = step.pool.values(places(step))
    state = [numbers.setdefault(key, len(numbers)) for key in places(step)]
    rows, k = at.nonzero().T
    columns = [
        np.full(len(state), n), np.array(state), values["value"][at].numpy(), truth,
        values["siblings"][at].numpy(), step.outcomes[rows].numpy(), values["trees"][at].numpy(),
    ]  # fmt: skip
    found: np.ndarray = np.stack(columns, axis=1)[(k > 0).numpy()]
    return found


def gradients(setup: Setup, weights: list[torch.Tensor]) -> torch.Tensor:
    """(N, P, k) sketches of the groups' gradients under a method."""
    return torch.stack([own @ pieces.sketches for own, pieces in zip(weights, setup.pieces, strict=True)], dim=1)
