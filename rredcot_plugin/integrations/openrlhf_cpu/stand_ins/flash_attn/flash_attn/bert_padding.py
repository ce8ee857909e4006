"""Rows without their padding, one after the other, and back."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange  # noqa: F401  imported from here


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return x[indices]


def unpad_input(x: torch.Tensor, mask: torch.Tensor, unused_mask: Any = None) -> tuple[Any, ...]:
    """Tokens (n, …) of rows (B, S, …), their places, cumulative lengths, the longest, and lengths."""
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.flatten(0, 1)[indices], indices, ends, int(lengths.max()), lengths


def pad_input(x: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    rows = x.new_zeros(batch * length, *x.shape[1:])
    rows[indices] = x
    return rows.view(batch, length, *x.shape[1:])
