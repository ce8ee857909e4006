"""``siblings``: what became of the other rollouts of a prompt that came to the same state. No probe, no model call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rredcot_plugin.groups import group_stats
from rredcot_plugin.registry import register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.actions import action_fingerprints
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed
from rredcot_plugin.values.fingerprints import fingerprints
from rredcot_plugin.values.siblings import shared

BY = ("actions", "tokens")


@register_value_estimator("siblings")
@dataclass(frozen=True)
class SiblingsEstimator:
    """What siblings earned after the same actions and answers.

    V̂_i = (Σ_j U_j + m) / (n + 1) over the n *other* rollouts j of the group that were in the state, m the mean reward of all
    others. Prose does not count with ``by: actions``; with ``tokens`` all tokens must be the same. A state is a function of what
    came before it, so any trace of the group that passed through it tells what it is worth, and the own outcome is in none of its
    values.

    Raises:
        ValueError: another ``by``; rollouts without texts (``actions``) or tokens.
    """

    by: str = "actions"

    proposes: ClassVar[str] = NO_PROBES
    max_proposals: ClassVar[int] = 1

    @property
    def reads_texts(self) -> bool:
        """Actions and answers are known by their words."""
        return self.by == "actions"

    def __post_init__(self) -> None:
        if self.by not in BY:
            raise ValueError(f"by={self.by!r}: expected one of {', '.join(BY)}")

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        state = action_fingerprints if self.by == "actions" else lambda *batch: fingerprints(*batch)[1]
        exists, outcomes = segments.exists.cpu().numpy(), rollouts.scores.cpu()
        finite = torch.isfinite(outcomes)
        stats = group_stats(outcomes, rollouts.group_ids, finite)
        outcomes = torch.where(finite, outcomes, 0.0)
        rows, _states = exists.nonzero()
        marks = state(rollouts, segments).cpu().numpy().view(np.uint64)[exists]
        same = shared(stats.index.numpy()[rows], marks, rows, outcomes.double().numpy(), finite.numpy())
        values = np.zeros(exists.shape)
        values[exists] = (same.total + stats.others_mean.double().numpy()[rows]) / (same.count + 1)
        known = (stats.count - finite.long() > 0) & (segments.num_segments.cpu() > 0)
        device = segments.segment_ids.device
        return Estimate(torch.from_numpy(values).float().to(device), known.to(device))
