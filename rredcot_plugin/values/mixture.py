"""``mixture``: a convex combination of estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rredcot_plugin.registry import VALUE_ESTIMATORS, check_number, register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import Estimate


@register_value_estimator("mixture")
@dataclass(frozen=True)
class MixtureEstimator:
    """A weighted mean of several estimators.

    V̂ = Σ_m w_m·V̂_m / Σ_m w_m over the estimators that know a state; what nobody knows stays unknown.
    ``estimators`` is a list of names, or of ``{name, options, weight}``; a weight left out is 1.
    Source: docs/reference/math.md (mixtures).

    Raises:
        ValueError: an empty list, an entry that is neither, a weight that is not a positive number.
    """

    estimators: Sequence[str | Mapping[str, Any]] = ("support", "confidence")
    parts: tuple[Any, ...] = field(init=False, repr=False)
    weights: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.estimators, str) or not self.estimators:
            raise ValueError(f"estimators={self.estimators!r}: expected a list of names, or of {{name, weight}}")
        entries = [_entry(entry) for entry in self.estimators]
        object.__setattr__(self, "parts", tuple(VALUE_ESTIMATORS.get(n, **options) for n, options, _ in entries))
        object.__setattr__(self, "weights", tuple(weight for _, _, weight in entries))

    def combine(self, estimates: Sequence[Estimate], rollouts: Rollouts, segments: Segments) -> Estimate:
        known = torch.stack([e.at_states() for e in estimates])  # (M, B, S)
        known_at, rows = known.any(dim=0), torch.stack([e.known for e in estimates])
        known = torch.where(known_at, known, rows[:, :, None])  # what stands in, where nobody knows the state
        share = torch.tensor(self.weights)[:, None, None] * known
        total = share.sum(dim=0)
        values = torch.where(known, torch.stack([e.values for e in estimates]), 0.0)
        mixed = (share * values).sum(dim=0) / total.clamp(min=1e-12)
        return Estimate(mixed, rows.any(dim=0), known_at)


def _entry(entry: str | Mapping[str, Any]) -> tuple[Any, Mapping[str, Any], float]:
    """Name, options and weight of one member."""
    if isinstance(entry, str):
        return entry, {}, 1.0
    if not isinstance(entry, Mapping) or "name" not in entry or set(entry) - {"name", "options", "weight"}:
        raise ValueError(f"estimators: expected a name or {{name, options, weight}}, got {entry!r}")
    weight = entry.get("weight", 1.0)
    check_number(f"weight of {entry['name']!r}", weight, 1e-6)
    return entry["name"], entry.get("options", {}), float(weight)
