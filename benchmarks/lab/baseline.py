"""One baseline of least variance a trace: what segments have to beat."""

from __future__ import annotations

import torch

from rredcot_plugin.groups import group_stats
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.least_variance import surprise, weighted_others_mean


def whole_baseline(rollouts: Rollouts, segments: Segments) -> torch.Tensor:
    """The default's baseline of the prompt, weighed by whole traces, at every state (B, S): no states, no probes."""
    outcomes = rollouts.outcomes
    valid = torch.isfinite(outcomes)
    weight = torch.where(segments.exists, surprise(rollouts, segments), 0.0).sum(1)
    stats = group_stats(outcomes, rollouts.group_ids, valid)
    return torch.where(segments.exists, weighted_others_mean(outcomes, weight, stats, valid)[:, None], 0.0)
