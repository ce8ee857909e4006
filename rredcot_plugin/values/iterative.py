"""``iterative``: refine an estimator's values backwards from the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from rredcot_plugin.registry import VALUE_ESTIMATORS, check_count, check_number, register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import Estimate


@register_value_estimator("iterative")
@dataclass(frozen=True)
class IterativeEstimator:
    """Another estimator's values, drawn towards what came after them, from the outcome backwards.

    ``sweeps`` times from the last state to the first: V̂_i ← (1 − alpha)·V̂_i + alpha·V̂_{i+1}, V̂_S = R. ``base``
    names the estimator that is refined, ``base_kwargs`` its options. The outcome of the trace itself flows into its
    values, so λ=1 is no longer unbiased: alpha = 0 is the base, alpha = 1 gives R everywhere and with it no credit
    before the prompt's. A state that the base does not know keeps the prior.
    Source: RREDCoT (arXiv 2606.06475) names iterative refinement; the formula is docs/reference/math.md, "iterative".

    Raises:
        ValueError: alpha outside [0, 1], sweeps under 1.
    """

    base: str | Mapping[str, Any] = "support"
    base_kwargs: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 0.5
    sweeps: int = 1
    sees_outcome: ClassVar[bool] = True
    parts: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0.0, 1.0)
        check_count("sweeps", self.sweeps)
        object.__setattr__(self, "parts", (VALUE_ESTIMATORS.get(self.base, **self.base_kwargs),))

    def combine(self, estimates: Sequence[Estimate], rollouts: Rollouts, segments: Segments) -> Estimate:
        (raw,) = estimates
        outcome = rollouts.scores
        usable = raw.known & torch.isfinite(outcome)
        values = raw.values
        for _ in range(self.sweeps):
            values = self._sweep(values, torch.where(usable, outcome, 0.0), segments)
        return Estimate(torch.where(usable[:, None], values, raw.values), raw.known, raw.known_at)

    def _sweep(self, values: torch.Tensor, outcome: torch.Tensor, segments: Segments) -> torch.Tensor:
        """One pass; the neighbour after a state is the one this pass has already refined."""
        refined = values.clone()
        following = outcome
        for i in reversed(range(values.shape[1])):
            exists = i < segments.num_segments
            following = torch.where(exists, (1 - self.alpha) * values[:, i] + self.alpha * following, outcome)
            refined[:, i] = torch.where(exists, following, values[:, i])
        return refined
