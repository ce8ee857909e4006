"""Sampling without copies of keys and values: with grouped queries, transformers' own attention repeats them at
every token, which takes half of the time on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "benchmarks_learn_folded"


def folded_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """One new token: the queries that share a key become the length of the query. Else transformers' attention."""
    rows, heads, length, width = query.shape
    if length != 1:
        found, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
        return found, None
    shared = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    output = torch.nn.functional.scaled_dot_product_attention(
        shared, key, value, attn_mask=mask, scale=options.get("scaling")
    )
    return output.reshape(rows, 1, heads, width), None


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """While this is open, ``model`` attends with ``folded_attention``."""
    AttentionInterface.register(NAME, folded_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
