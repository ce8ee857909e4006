"""``monte_carlo``: the mean reward of continuations that were really generated from each boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rredcot_plugin.registry import check_count, register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed, scores_at_states


@register_value_estimator("monte_carlo")
@dataclass(frozen=True)
class MonteCarloEstimator:
    """Mean reward of continuations generated from the state: unbiased, and expensive.

    V̂_i = mean reward of ``samples`` continuations from s_i. Reads ``token_scores["monte_carlo"]``; inside verl the
    rollout server continues every boundary of every trace, ``concurrency`` requests at a time, with seeds made from
    ``seed``, the step, the state and the number of the sample. ``max_tokens`` bounds a continuation; None leaves what
    the trace had left.
    In reward units already, so ``calibrate`` does not apply.
    Source: VinePPO (arXiv 2410.01679, section 4); MC-GRPO in RREDCoT (arXiv 2606.06475).

    Raises:
        ValueError: counts under 1.
    """

    samples: int = 4
    concurrency: int = 64
    max_tokens: int | None = None
    seed: int = 0

    proposes: ClassVar[str] = NO_PROBES
    reads: ClassVar[tuple[str, ...]] = ("monte_carlo",)
    calibrates: ClassVar[bool] = False
    max_proposals: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_count("concurrency", self.concurrency)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        return scores_at_states("monte_carlo", rollouts, segments)
