"""What calibration looks at: numbers about the prefix of a trace that cost nothing.

Every feature of a state is a function of the tokens before it and of *other* rollouts, never of the rest
of the trace, so a baseline made from them leaves the policy gradient unbiased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.types import Segments
from rredcot_plugin.values import siblings
from rredcot_plugin.values.prefix_numbers import PrefixNumbers

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
    prefixes: PrefixNumbers,
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
    others = (stats.count - 1).clamp(min=0)
    smoothed = (unit_others_mean * others + 0.5) / (others + 1)
    B, S = prefixes.tokens.shape
    number = torch.arange(S, device=prefixes.tokens.device).float().expand(B, S)
    probe, others_mean = torch.logit(unit_values.clamp(1e-4, 1 - 1e-4)), torch.logit(smoothed)[:, None]
    log_segments = torch.log1p(number)
    columns = [
        probe,
        others_mean.expand(B, S),
        torch.log1p(prefixes.tokens),
        log_segments,
        *prefixes.log_probs.unbind(2),
        *prefixes.entropies.unbind(2),
        *siblings.sibling_features(prefixes, segments, stats.index, unit_outcomes, unit_others_mean, valid),
        probe * log_segments,
        others_mean * log_segments,
    ]
    return torch.stack([column.double() for column in columns], dim=2)
