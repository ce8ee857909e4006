"""One baseline of least variance a trace: what segments have to beat."""

from __future__ import annotations

import torch

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import Rollouts, Segments


def whole_baseline(rollouts: Rollouts, segments: Segments, **options: float) -> torch.Tensor:
    """What ``baseline: trace`` with these ``baseline_kwargs`` measures from, at every state (B, S): no states, no probes."""
    values, config = torch.zeros(segments.exists.shape), RRedCoTConfig(baseline="trace", baseline_kwargs=options)
    found = assign_credit(rollouts, config, segments=segments, values=values).baselines
    assert found is not None
    return found
