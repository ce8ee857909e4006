"""What became of the other rollouts of a prompt that went the same way: evidence that costs no forward pass.

A trace whose last segment stands in rewarded siblings is on a good way, one whose last segment only failing siblings
share is not, however sure the actor was when it wrote it. Segments are compared token by token, through 64-bit
sums of mixed tokens (two different segments of a group collide with a chance of 2^-64). Only *other* rollouts
count, so a value made from these numbers is still a function of the state and of other rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.types import Rollouts, Segments

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

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 17
"""Tokens that are fingerprinted at a time."""
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Shared:
    """For M places: how many *other* rollouts have what is there, and the sum of their outcomes."""

    count: NDArray[np.float64]
    total: NDArray[np.float64]


def sibling_features(
    rollouts: Rollouts,
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
    own, prefix = _fingerprints(rollouts, segments)
    rows, states = exists.nonzero()
    segment, path = np.zeros((2, *exists.shape)), np.zeros((2, *exists.shape))
    same = _shared(groups[rows], own[exists], rows, outcomes, known)
    segment[:, rows, states] = same.total, same.count - same.total
    finished = np.pad(segment, ((0, 0), (0, 0), (1, 0)))[:, :, :-1]  # a segment is known at the state after it
    same = _shared(groups[rows], prefix[exists], rows, outcomes, known)
    prior = unit_others_mean.double().cpu().numpy()[rows]
    path[:, rows, states] = (same.total + prior) / (same.count + 1), np.log1p(same.count)
    columns = [*np.log1p(np.where(exists, finished, 0.0)), *path]
    return [torch.from_numpy(column).float().to(segments.segment_ids.device) for column in columns]


def _shared(
    group: NDArray[np.int64],
    fingerprint: NDArray[np.uint64],
    row: NDArray[np.int64],
    outcomes: NDArray[np.float64],
    valid: NDArray[np.bool_],
) -> Shared:
    """What other rows of the group have the fingerprint of each place, every row counted once."""
    _, key = np.unique(_mixed(fingerprint ^ _mixed(group.astype(np.uint64))), return_inverse=True)
    once, other = np.divmod(np.unique(key * len(valid) + row), len(valid))
    keys, weight = int(key.max(initial=-1)) + 1, valid.astype(np.float64)
    count = np.bincount(once, weight[other], keys)[key] - weight[row]
    total = np.bincount(once, (weight * outcomes)[other], keys)[key] - (weight * outcomes)[row]
    return Shared(count, total.clip(min=0))


def _fingerprints(rollouts: Rollouts, segments: Segments) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(B, S) of each segment, and of all tokens before it; the model's own tokens only.

    Σ_t mixed(token_t)·multiplier(place_t) modulo 2^64, a multilinear hash, over blocks of rows that fit into a cache.
    """
    real, tokens = rollouts.response_mask.cpu().numpy(), rollouts.token_ids.cpu().numpy()
    ids, starts = segments.segment_ids.cpu().numpy(), segments.starts.cpu().numpy()
    multiplier = _mixed(np.arange(1, real.shape[1] + 2, dtype=np.uint64) * GOLDEN) | np.uint64(1)
    own, prefix = (np.zeros(starts.shape, dtype=np.uint64) for _ in range(2))
    block = max(1, BLOCK // max(1, real.shape[1]))
    for first in range(0, len(real), block):
        part = slice(first, first + block)
        own[part], prefix[part] = _block(real[part], tokens[part], ids[part], starts[part], multiplier)
    return own, prefix


def _block(
    real: NDArray[np.bool_],
    tokens: NDArray[np.int64],
    ids: NDArray[np.int64],
    starts: NDArray[np.int64],
    multiplier: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    words = np.where(real, _mixed(tokens.astype(np.uint64) + GOLDEN), np.uint64(0))
    position = np.cumsum(real, axis=1, dtype=np.int64)
    first = np.take_along_axis(_exclusive_sum(real.astype(np.int64), starts), ids.clip(min=0), axis=1)
    ends = np.pad(starts, ((0, 0), (0, 1)), constant_values=real.shape[1])
    own = np.diff(_exclusive_sum(words * multiplier[position - np.where(real, first, 0)], ends), axis=1)
    return own, _exclusive_sum(words * multiplier[position], starts)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


def _exclusive_sum(x: NDArray[Any], before: NDArray[np.int64]) -> NDArray[Any]:
    """Σ of the columns < before."""
    padded = np.pad(np.cumsum(x, axis=1, dtype=x.dtype), ((0, 0), (1, 0)))
    return np.take_along_axis(padded, before, axis=1)
