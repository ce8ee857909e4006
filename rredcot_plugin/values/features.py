"""What calibration looks at: numbers about the prefix of a trace that cost nothing.

Every feature of a state is a function of the tokens before it and of *other* rollouts, never of the rest
of the trace, so a baseline made from them leaves the policy gradient unbiased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.types import Rollouts, Segments, by_rows
from rredcot_plugin.values import siblings

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

NAMES = (
    "logit_value",
    "logit_others_mean",
    "log_position",
    "log_segments",
    "log_prob_sum",
    "log_prob_mean",
    "log_prob_min",
    "last_segment_log_prob_sum",
    "last_segment_log_prob_min",
    "entropy_mean",
    "entropy_max",
    *siblings.NAMES,
    "logit_value*log_segments",
    "logit_others_mean*log_segments",
)
"""The products let what the probe and the others' mean say weigh differently early and late."""


def boundary_features(
    rollouts: Rollouts,
    segments: Segments,
    unit_values: Float[Tensor, "B S"],
    stats: GroupStats,
    unit_others_mean: Float[Tensor, " B"],
    unit_outcomes: Float[Tensor, " B"],
    valid: Bool[Tensor, " B"],
) -> Float[Tensor, "B S F"]:
    """Features of every state, in the order of ``NAMES``; 0 for signals that the rollouts do not carry.

    ``unit_values``, ``unit_others_mean`` and ``unit_outcomes`` are on the scale [0, 1] of the outcome; a rollout's own
    outcome goes into the features of its siblings alone, if it is ``valid``. The others' mean is smoothed by half
    a success and half a failure, so a group without variance stays finite.
    """
    before = segments.starts  # (B, S): tokens in columns < start precede the state
    others = (stats.count - 1).clamp(min=0)
    smoothed = (unit_others_mean * others + 0.5) / (others + 1)
    real = rollouts.response_mask
    position = by_rows(exclusive_sum, real, before)
    S = segments.max_segments
    number = torch.arange(S, device=real.device).float().expand(len(before), S)
    probe, others_mean = torch.logit(unit_values.clamp(1e-4, 1 - 1e-4)), torch.logit(smoothed)[:, None]
    log_segments = torch.log1p(number)
    columns = [
        probe,
        others_mean.expand_as(position),
        torch.log1p(position),
        log_segments,
        *_signal_features(rollouts.log_probs, real, segments, position, lowest=True),
        *_signal_features(rollouts.entropies, real, segments, position, lowest=False),
        *siblings.sibling_features(rollouts, segments, stats.index, unit_outcomes, unit_others_mean, valid),
        probe * log_segments,
        others_mean * log_segments,
    ]
    return torch.stack([column.double() for column in columns], dim=2)


def _signal_features(
    signal: torch.Tensor | None, real: torch.Tensor, segments: Segments, position: torch.Tensor, *, lowest: bool
) -> list[torch.Tensor]:
    """Running statistics of a per-token signal over the prefix: log-probs in full, entropies in short."""
    if signal is None:
        return [torch.zeros_like(position)] * (5 if lowest else 2)

    def statistics(
        x: torch.Tensor, real: torch.Tensor, before: torch.Tensor, ids: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        total = exclusive_sum(torch.where(real, x, 0.0), before)
        last = _extreme_of_last_segment(x, real, ids, before.shape[1], lowest=lowest)
        extreme = last.cummin(dim=1).values if lowest else last.cummax(dim=1).values
        columns = [total / position.clamp(min=1), _or_zero(extreme)]
        if lowest:
            last_total = torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
            columns = [total, *columns, last_total, _or_zero(last)]
        return torch.stack(columns, dim=2)

    parts = (signal.float(), real, segments.starts, segments.segment_ids, position)
    return list(by_rows(statistics, *parts).unbind(2))


def exclusive_sum(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Σ of the columns < before."""
    padded = torch.nn.functional.pad(x.cumsum(dim=1, dtype=torch.float64), (1, 0))
    return padded.gather(1, before).float()


def _extreme_of_last_segment(
    x: torch.Tensor, real: torch.Tensor, ids: torch.Tensor, states: int, *, lowest: bool
) -> torch.Tensor:
    """Least (or greatest) value within the segment that ends at each state, infinite at the prompt: (B, S)."""
    neutral = torch.inf if lowest else -torch.inf
    found = x.new_full((len(x), states + 1), neutral)
    found.scatter_reduce_(1, ids + 1, torch.where(real, x, neutral), reduce="amin" if lowest else "amax")
    found[:, 0] = neutral  # tokens of no segment
    return found[:, :states]


def _or_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(x), x, 0.0)
