"""Ring attention in torch's own attention: each rank has a share of the packed rows, and gathers the keys and values of all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from flash_attn.utils.distributed import all_gather
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CUMULATIVE: list[torch.Tensor] = []
"""Where the rows of the present forward end."""


def update_ring_flash_attn_params(cu_seqlens: torch.Tensor, process_group: Any) -> None:
    CUMULATIVE[:] = [cu_seqlens]


def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int) -> None:
    """From here on ``sdpa`` is an attention of tokens over the tokens before them in their row, on whatever rank."""

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        keys, values = (_whole(x, process_group) for x in (key, value))
        length = query.shape[2]
        first = dist.get_rank(process_group) * length
        places = torch.arange(keys.shape[2])
        row = torch.bucketize(places, CUMULATIVE[0][1:].long(), right=True)
        own = places[first : first + length, None]
        seen = (row[own] == row) & (places <= own)
        out = scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, scale=scaling, dropout_p=dropout, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def _whole(share: torch.Tensor, group: Any) -> torch.Tensor:
    """(1, heads, length, d) of every rank as one, along the length."""
    return all_gather(share.transpose(0, 2), group).transpose(0, 2)
