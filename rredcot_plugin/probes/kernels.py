"""Attention with an explicit mask, for grouped-query heads, with or without logit soft-capping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class AttentionOptions:
    """What a layer asks of its attention; `window` counts position ids (visible iff p_q - p_k < window)."""

    scaling: float | None = None
    window: int | None = None
    softcap: float | None = None


MASK_STRIDE = 8
"""Rows of a mask start at multiples of it; PyTorch's memory-efficient attention otherwise copies the mask at every call."""


def additive_mask(visible: Tensor, shared_heads: int, dtype: torch.dtype) -> Tensor:
    """0 where visible, else -inf: (L, S) bool -> (shared_heads * L, S), as `masked_attention` wants it."""
    queries, keys = visible.shape
    stride = -(-keys // MASK_STRIDE) * MASK_STRIDE
    mask = torch.zeros((shared_heads, queries, stride), dtype=dtype, device=visible.device)
    mask[:, :, :keys].masked_fill_(~visible, float("-inf"))
    return mask.flatten(0, 1)[:, :keys]


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, options: AttentionOptions) -> Tensor:
    """softmax(scaling * q k^T + mask) v: query (1, H, L, D), key/value (1, H_kv, S, D), mask (H / H_kv * L, S).

    Query heads that share a key head are folded into the query dimension, so keys are never repeated.
    The mask is the whole truth here: `options.window` is not read. Returns (1, H, L, D_v).
    """
    batch, heads, num_queries, dim = query.shape
    folded = query.reshape(batch, key.shape[1], heads // key.shape[1] * num_queries, dim)
    if options.softcap is None:
        out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=options.scaling)
    else:
        scaling = query.shape[-1] ** -0.5 if options.scaling is None else options.scaling
        out = _softcapped_attention(folded * scaling, key, value, mask, options.softcap)
    return out.reshape(batch, heads, num_queries, value.shape[-1])


def _softcapped_attention(
    scaled_query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float
) -> Tensor:
    scores = torch.tanh(torch.matmul(scaled_query, key.transpose(-1, -2)) / softcap) * softcap
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(value.dtype), value)
