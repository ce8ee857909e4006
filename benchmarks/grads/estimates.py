"""Values of a step's states by every estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grads.asking import Asked
from grads.step import FITTED, Step, config, fit_values, places
from rredcot_plugin.pipeline import assign_credit


def all_values(step: Step, asked: Asked, past: int, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """V̂ (B, S) by name, fitted on the step and ``past`` ones; those of continuations if there is a pool of them."""
    rollouts, segments = step.rows.rollouts, step.segments
    found = {}
    for name in FITTED:
        calibrator = config(**FITTED[name], calibrate_window=past).build_calibrator()
        calibrator.load_state_dict(step.window[name])
        found[name] = fit_values(asked, step.rows, segments, name, calibrator).baselines
    raw = config(calibrate="none")
    probed = asked.probed(step.rows, segments, raw)
    found["support"] = assign_credit(rollouts, raw, segments=segments, probed=probed).values
    for kind in ("attention", "gradient"):
        scored = asked.scored(step.rows, segments, kind)
        found[kind] = assign_credit(scored, config(value_estimator=kind), segments=segments).values
    found["siblings"] = sibling_values(step)
    return found | continued_values(step, rng) if step.pool.size else found


def continued_values(step: Step, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """V̂ (B, S) as means over continuations; ``true`` are those over the whole pool."""
    states, at, found = places(step), step.segments.exists, {}
    for name, numbers in {
        "monte_carlo_4": step.pool.few(states, 4, rng),
        "monte_carlo_32": step.pool.few(states, min(32, step.pool.size), rng),
        "true": step.pool.values(states),
    }.items():
        values = torch.zeros(at.shape)
        values[at] = torch.from_numpy(numbers).float()
        # as in the package: the prompt's own value is the others' mean, but where the truth is told
        values[:, 0] = step.prompt_mean if name == "true" else step.stats.others_mean
        found[name] = values
    return found


def sibling_values(step: Step) -> torch.Tensor:
    """Mean reward of the other rollouts of the group that reached the same state, with one more of all others' mean."""
    groups, outcomes, others = step.rows.rollouts.group_ids, step.outcomes, step.stats.others_mean
    total: dict[Any, float] = {}
    count: dict[Any, int] = {}
    rows, states = step.segments.exists.nonzero().T.tolist()
    keys = [(groups[row], state) for row, state in zip(rows, places(step), strict=True)]
    for key, row in zip(keys, rows, strict=True):
        total[key] = total.get(key, 0.0) + float(outcomes[row])
        count[key] = count.get(key, 0) + 1
    values = torch.zeros(step.segments.exists.shape)
    for key, row, k in zip(keys, rows, states, strict=True):
        values[row, k] = (total[key] - float(outcomes[row]) + float(others[row])) / count[key]
    return values
