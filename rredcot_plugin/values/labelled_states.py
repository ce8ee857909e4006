"""States with their outcomes, and which of them a fit sees: by groups, so that no value knows its own outcome."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

EXACT_GROUPS = 16
FOLDS = 8


@dataclass(frozen=True)
class LabelledStates:
    """M states with their features, the outcome of their trace in reward units, and a weight each.

    ``importance`` makes some states count more than others; the fit scales it to a mean of 1, so that the
    regularisation keeps its strength.
    """

    features: Float[Tensor, "M F"]
    outcome: Float[Tensor, " M"]
    weight: Float[Tensor, " M"]
    importance: Float[Tensor, " M"]
    change: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]  # __post_init__ fills it in
    """δ̂ of the segment that starts there; NaN where it is not known, as everywhere unless given."""
    version: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]
    """Of the policy that finished the trace (``Rollouts.versions``); NaN where it is not known, as everywhere unless given."""

    paid: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]
    """Rewards on the way from there on, as its baseline is to count them; 0 everywhere unless given."""
    rest: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]
    """R − V̂, what the state left open (``values.luck``); NaN where it is not known, as everywhere unless given."""
    luck: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]
    """Surprises from there on; NaN as ``rest``."""
    foreseen: Float[Tensor, " M"] = field(default=None)  # type: ignore[assignment]
    """What steps before told of ``luck``; NaN as ``rest``."""

    def __post_init__(self) -> None:
        for own in fields(self):
            if getattr(self, own.name) is None:
                unknown = 0.0 if own.name == "paid" else torch.nan
                object.__setattr__(self, own.name, torch.full_like(self.weight, unknown))

    def some(self, chosen: Bool[Tensor, " M"]) -> LabelledStates:
        return LabelledStates(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @classmethod
    def joined(cls, steps: Sequence[LabelledStates]) -> LabelledStates:
        return cls(*(torch.cat([getattr(step, f.name) for step in steps]) for f in fields(cls)))


def fold_of_groups(group_ids: Sequence[Hashable]) -> Int[Tensor, " B"]:
    """Which fold each rollout belongs to: one per group up to 16 groups, else 8 folds by a hash of the id.

    Depends on the ids alone, never on the order of the rows.
    """
    distinct = {gid: i for i, gid in enumerate(sorted(set(group_ids), key=str))}
    if len(distinct) <= EXACT_GROUPS:
        return torch.tensor([distinct[gid] for gid in group_ids], dtype=torch.int64)
    return torch.tensor([_hash(gid) % FOLDS for gid in group_ids], dtype=torch.int64)


def sample_of_groups(group_ids: Sequence[Hashable], states: float, most: int) -> Bool[Tensor, " B"]:
    """Rollouts of so many groups that they have about ``most`` states together, all if they have no more; at least two
    groups. ``states`` is how many a rollout has, as it was in past steps: how many each has now is up to what it wrote
    later than a state whose value the sample decides.

    Which groups is up to a hash of their ids, so neither the order of the rows nor an outcome has a say.
    """
    if len(group_ids) * states <= most:
        return torch.ones(len(group_ids), dtype=torch.bool)
    size = Counter(group_ids)
    chosen: set[Hashable] = set()
    total = 0
    for gid in sorted(size, key=lambda gid: (_hash(gid) >> 3, str(gid))):
        total += size[gid]
        if len(chosen) >= 2 and total * states > most:
            break
        chosen.add(gid)
    return torch.tensor([gid in chosen for gid in group_ids])


def _hash(gid: Hashable) -> int:
    """Of its text, half a pair of surrogates included."""
    return zlib.crc32(str(gid).encode("utf-8", "surrogatepass"))
