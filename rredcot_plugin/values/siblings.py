"""What became of the other rollouts of a prompt that went the same way: evidence that costs no forward pass.

A trace whose last segment stands in rewarded siblings is on a good way, one whose last segment only failing siblings
share is not, however sure the actor was when it wrote it. Segments are compared token by token, through their
fingerprints. Only *other* rollouts count, so a value made from these numbers is still a function of the state and of
other rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.types import Segments
from rredcot_plugin.values.fingerprints import mixed
from rredcot_plugin.values.prefix_numbers import PrefixNumbers

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray
    from torch import Tensor

NAMES = (
    "segment_shared_rewarded",
    "segment_shared_unrewarded",
    "prefix_shared_mean",
    "prefix_shared_count",
)


@dataclass(frozen=True)
class Shared:
    """For M places: how many *other* rollouts have what is there, and the sum of their outcomes."""

    count: NDArray[np.float64]
    total: NDArray[np.float64]


def sibling_features(
    prefixes: PrefixNumbers,
    segments: Segments,
    group: Int[Tensor, " B"],
    unit_outcomes: Float[Tensor, " B"],
    unit_others_mean: Float[Tensor, " B"],
    valid: Tensor,
) -> list[Tensor]:
    """Four columns (B, S), in the order of ``NAMES``; outcomes on the scale [0, 1], rows not ``valid`` are nobody's
    sibling.

    ``segment_shared_rewarded``/``_unrewarded``: log(1 + Σ U) and log(1 + Σ (1 − U)) over the siblings that have the
    segment just finished anywhere among theirs; 0 at the prompt. ``prefix_shared_mean``: mean U of the siblings
    that reached a boundary by the same tokens, with one more of the mean of all siblings; ``prefix_shared_count``:
    log(1 + how many).
    """
    exists, outcomes = segments.exists.cpu().numpy(), unit_outcomes.double().cpu().numpy()
    known, groups = valid.cpu().numpy(), group.cpu().numpy()
    own, prefix = (x.cpu().numpy().view(np.uint64) for x in (prefixes.segment, prefixes.prefix))
    rows, states = exists.nonzero()
    segment, path = np.zeros((2, *exists.shape)), np.zeros((2, *exists.shape))
    same = shared(groups[rows], own[exists], rows, outcomes, known)
    segment[:, rows, states] = same.total.clip(min=0), same.count - same.total
    finished = np.pad(segment, ((0, 0), (0, 0), (1, 0)))[:, :, :-1]  # a segment is known at the state after it
    same = shared(groups[rows], prefix[exists], rows, outcomes, known)
    prior = unit_others_mean.double().cpu().numpy()[rows]
    path[:, rows, states] = (same.total.clip(min=0) + prior) / (same.count + 1), np.log1p(same.count)
    columns = [*np.log1p(np.where(exists, finished, 0.0)), *path]
    return [torch.from_numpy(column).float().to(segments.segment_ids.device) for column in columns]


def shared(
    group: NDArray[np.int64],
    fingerprint: NDArray[np.uint64],
    row: NDArray[np.int64],
    outcomes: NDArray[np.float64],
    valid: NDArray[np.bool_],
) -> Shared:
    """What other rows of the group have the fingerprint of each place, every row counted once."""
    _, key = np.unique(mixed(fingerprint ^ mixed(group.astype(np.uint64))), return_inverse=True)
    once, other = np.divmod(np.unique(key * len(valid) + row), len(valid))
    keys, weight = int(key.max(initial=-1)) + 1, valid.astype(np.float64)
    count = np.bincount(once, weight[other], keys)[key] - weight[row]
    total = np.bincount(once, (weight * outcomes)[other], keys)[key] - (weight * outcomes)[row]
    return Shared(count, total)
