"""Fingerprints of segments and prefixes: equal where the tokens are, 64 bits each.

Two different segments of a group collide with a chance of 2^-64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Int
    from numpy.typing import NDArray
    from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 17
"""Tokens that are fingerprinted at a time."""
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def fingerprints(rollouts: Rollouts, segments: Segments) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """Of each segment, the model's own tokens only; and of all tokens before it from the model's first one on, a tool's
    answers included: the same words after another answer are another state.

    Σ_t mixed(token_t)·multiplier(place_t) modulo 2^64, a multilinear hash, over blocks of rows that fit into a cache. The
    64 bits are those of an int64.

    Raises:
        ValueError: rollouts without tokens.
    """
    if rollouts.token_ids is None:
        raise ValueError(
            "token_ids: calibration compares the segments of siblings token by token, but the rollouts have none; give "
            "Rollouts.token_ids, or their numbers as states="
        )
    real, tokens = rollouts.response_mask.cpu().numpy(), rollouts.token_ids.cpu().numpy()
    ids, starts = segments.segment_ids.cpu().numpy(), segments.starts.cpu().numpy()
    multiplier = mixed(np.arange(1, real.shape[1] + 2, dtype=np.uint64) * GOLDEN) | np.uint64(1)
    own, prefix = (np.zeros(starts.shape, dtype=np.uint64) for _ in range(2))
    block = max(1, BLOCK // max(1, real.shape[1]))
    for first in range(0, len(real), block):
        part = slice(first, first + block)
        own[part], prefix[part] = _block(real[part], tokens[part], ids[part], starts[part], multiplier)
    device = segments.segment_ids.device
    return torch.from_numpy(own.view(np.int64)).to(device), torch.from_numpy(prefix.view(np.int64)).to(device)


def _block(
    real: NDArray[np.bool_],
    tokens: NDArray[np.int64],
    ids: NDArray[np.int64],
    starts: NDArray[np.int64],
    multiplier: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    words = np.where(real, mixed(tokens.astype(np.uint64) + GOLDEN), np.uint64(0))
    position = np.cumsum(real, axis=1, dtype=np.int64)
    first = np.take_along_axis(_exclusive_sum(real.astype(np.int64), starts), ids.clip(min=0), axis=1)
    ends = np.pad(starts, ((0, 0), (0, 1)), constant_values=real.shape[1])
    own = np.diff(_exclusive_sum(words * multiplier[position - np.where(real, first, 0)], ends), axis=1)
    seen = position > 0
    told = np.where(seen, mixed(tokens.astype(np.uint64) + GOLDEN), np.uint64(0))
    return own, _exclusive_sum(told * multiplier[np.cumsum(seen, axis=1, dtype=np.int64)], starts)


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


def _exclusive_sum(x: NDArray[Any], before: NDArray[np.int64]) -> NDArray[Any]:
    """Σ of the columns < before."""
    padded = np.pad(np.cumsum(x, axis=1, dtype=x.dtype), ((0, 0), (1, 0)))
    return np.take_along_axis(padded, before, axis=1)
