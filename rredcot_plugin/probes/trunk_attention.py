"""Causal attention of packed trunk rows, each row on its own, in memory linear in the trunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rredcot_plugin.probes.kernels import AttentionOptions, additive_mask, masked_attention

BLOCK_SIZE = 256
"""Queries a block where the fused causal kernel cannot be used (sliding window, soft-capping)."""


def trunk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_spans: Sequence[tuple[int, int, int]],
    options: AttentionOptions,
) -> Tensor:
    """Causal attention (1, H, T, D_v) over rows packed in one sequence; rows do not see each other."""
    out = [
        _row_attention(query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], options)
        for _, start, end in row_spans
    ]
    return torch.cat(out, dim=2)


def _row_attention(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    if options.softcap is None and (options.window is None or options.window >= query.shape[2]):
        shared_heads = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=options.scaling, enable_gqa=shared_heads
        )
    return _blockwise_attention(query, key, value, options)


def _blockwise_attention(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    num_tokens = query.shape[2]
    index = torch.arange(num_tokens, device=query.device)
    window = num_tokens if options.window is None else options.window
    blocks = []
    for start in range(0, num_tokens, BLOCK_SIZE):
        stop = min(start + BLOCK_SIZE, num_tokens)
        first = max(0, start - window + 1)
        distance = index[start:stop, None] - index[first:stop]
        visible = (distance >= 0) & (distance < window)
        mask = additive_mask(visible, query.shape[1] // key.shape[1], query.dtype)
        blocks.append(
            masked_attention(
                query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop], mask, options
            )
        )
    return torch.cat(blocks, dim=2)
