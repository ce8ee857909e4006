"""``critic``: the values of a trained critic at the boundaries (``algorithm.adv_estimator=rredcot_ppo``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rredcot_plugin.registry import register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed, scores_at_states


@register_value_estimator("critic")
@dataclass(frozen=True)
class CriticEstimator:
    """The value that a trained critic gives the state; adv_estimator=rredcot_ppo.

    V̂_i = V_ψ(s_i), read from ``token_scores["critic"]`` at the first token of segment i.
    In reward units already, so ``calibrate`` does not apply. Source: PPO (arXiv 1707.06347) with segments as steps.
    """

    proposes: ClassVar[str] = NO_PROBES
    reads: ClassVar[tuple[str, ...]] = ("critic",)
    calibrates: ClassVar[bool] = False
    max_proposals: ClassVar[int] = 1

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        return scores_at_states("critic", rollouts, segments)
