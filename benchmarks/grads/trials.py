"""Ideas that the package does not have, or has under another key, in the form of ``methods``."""

from __future__ import annotations

import torch
from lab.baseline import whole_baseline

from grads.methods import credit_of, flat, verl_grpo
from grads.step import LOW_FLOOR, Step
from rredcot_plugin.credit.redistribution import redistribute

PSEUDO_ROLLOUTS = 4.0
"""How many rollouts the batch's mean counts for in the shrunken baselines."""

PIECE_TOKENS = 8
"""About the length of a line: λ of a token is the PIECE_TOKENS-th root of λ of a segment."""


def trials(step: Step, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """(B, S) of every idea that the package does not have, or has under another key."""
    return (
        _scaled(step, values["value"])
        | _other_baselines(step, values)
        | _norm_weighted(step, values)
        | _from_least_variance(step, values)
    )


def _scaled(step: Step, fitted: torch.Tensor) -> dict[str, torch.Tensor]:
    """Calibrated values under other scales, loss aggregations and meanings of λ."""
    tokens, count = step.segments.lengths.float(), step.segments.num_segments
    lengths = tokens.sum(1, keepdim=True)
    links = (count - 1).clamp(min=1)[:, None].expand_as(tokens)
    return {
        "batch_std_lam_1": credit_of(step, fitted, scale="batch_std"),
        "whiten_lam_1": credit_of(step, fitted, scale="whiten"),
        "match_grpo_lam_0": credit_of(step, fitted, match_grpo=True, lam=0.0),
        "match_grpo_lam_0.9": credit_of(step, fitted, match_grpo=True, lam=0.9),
        "token_mean_value": credit_of(step, fitted) / lengths.mean(),
        "trace_mean_value": credit_of(step, fitted) / lengths,
        "trace_mean_grpo": verl_grpo(step, deviation=True) / lengths,
        "clipped_lam_1": credit_of(step, fitted, scale="none").clamp(-0.5, 0.5),
        "lam_0.9_per_token": _by_token(step, fitted, 0.9 ** (tokens / PIECE_TOKENS)),
        "lam_0.9_per_trace": _by_token(step, fitted, 0.9 ** (1 / links)),
    }


def _other_baselines(step: Step, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What else may stand at the prompt, or everywhere."""
    fitted, stats = values["value"], step.stats
    others = stats.count - 1
    running = (stats.others_mean * others + step.past_sum) / (others + step.past_count)
    elsewhere = (step.outcomes.sum() - stats.mean * stats.count) / (len(step.outcomes) - stats.count)
    shrunk = (stats.others_mean * others + PSEUDO_ROLLOUTS * elsewhere) / (others + PSEUDO_ROLLOUTS)
    mixed = (fitted + values["siblings"]) / 2
    return {
        "running_mean": flat(step, step.outcomes - running),
        "shrunk_mean": flat(step, step.outcomes - shrunk),
        "half_mean": flat(step, step.outcomes - stats.others_mean / 2),
        "no_baseline": flat(step, step.outcomes),
        "calibrated_running_lam_1": credit_of(step, _with_prior(fitted, running), scale="none"),
        "calibrated_running_lam_0.9": credit_of(step, _with_prior(fitted, running), scale="none", lam=0.9),
        "fitted_and_siblings_lam_0.9": credit_of(step, mixed, scale="none", lam=0.9),
        "fitted_and_siblings_lam_1": credit_of(step, mixed, scale="none"),
    }


def _norm_weighted(step: Step, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Baselines for the least variance instead of the best prediction."""
    fitted = values["default"]
    whole, low = (whole_baseline(step.rows.rollouts, step.segments, **own) for own in ({}, LOW_FLOOR))
    return {
        "norm_weighted_mean": credit_of(step, whole, scale="none"),
        "low_floor_trace": credit_of(step, low, scale="none"),
        "norm_weighted_lam_0.9": credit_of(step, fitted, scale="none", lam=0.9),
        "norm_weighted_batch_std": credit_of(step, fitted, scale="batch_std"),
    }


def _from_least_variance(step: Step, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``baseline: least_variance`` at λ < 1: Â of good values, measured from the default's baselines instead of V."""
    found = {}
    for name, of in (("calibrated", "value"), ("trees", "trees"), ("true", "true")):
        if of not in values:
            continue
        own = values[of]
        moved = torch.where(step.segments.exists, own - values["default"], 0.0)
        for lam in (0.0, 0.5, 0.9):
            given = credit_of(step, own, scale="none", lam=lam) + moved
            found[f"{name}_from_least_variance_lam_{lam:g}"] = given
            found[f"{name}_answer_in_full_lam_{lam:g}"] = given + _rest_of_answer(step, own, lam)
    return found


def _rest_of_answer(step: Step, values: torch.Tensor, lam: float) -> torch.Tensor:
    """What a λ-return leaves out of the answer's δ, R − V̂ of the last state: with it, an error of V̂ that stays through
    the trace falls out of the sum."""
    count = step.segments.num_segments
    last = redistribute(values, step.outcomes, count).gather(1, (count - 1).clamp(min=0)[:, None])
    following = (count[:, None] - 1 - torch.arange(values.shape[1])).clamp(min=0)
    return torch.where(step.segments.exists, (1 - lam**following) * last, 0.0)


def _with_prior(values: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    return torch.cat([prior[:, None], values[:, 1:]], dim=1)


def _by_token(step: Step, values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Â_k = δ_k + keep_k Â_{k+1}, ``keep`` (B, S); unscaled."""
    deltas = redistribute(values, step.outcomes, step.segments.num_segments)
    found, running = torch.zeros_like(deltas), torch.zeros_like(deltas[:, 0])
    for k in reversed(range(deltas.shape[1])):
        running = torch.where(k < step.segments.num_segments, deltas[:, k] + keep[:, k] * running, 0.0)
        found[:, k] = running
    return found
