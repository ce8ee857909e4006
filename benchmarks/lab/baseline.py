"""One baseline of least variance a trace: what segments have to beat."""

from __future__ import annotations

import torch

from rredcot_plugin.groups import group_stats
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.least_variance import surprise, trace_baseline


def whole_baseline(rollouts: Rollouts, segments: Segments) -> torch.Tensor:
    """What ``baseline: trace`` measures from, at every state (B, S): no states, no probes."""
    outcomes = rollouts.outcomes
    valid = torch.isfinite(outcomes)
    stats = group_stats(outcomes, rollouts.group_ids, valid)
    baselines = trace_baseline(surprise(rollouts, segments), segments, outcomes, stats, valid)
    return torch.where(segments.exists, baselines, 0.0)
