"""Trace and probes packed into one sequence, with FlexAttention instead of the project's own fork attention."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from rredcot_plugin.probes.attention_hook import AttentionCall, AttentionResult, override_attention
from rredcot_plugin.probes.layout import ProbeLayout
from rredcot_plugin.probes.log_probs import counted_rows, row_logits, selected_log_probs, sum_per_probe
from rredcot_plugin.probes.transfer import send

TRUNK = -1


@cache
def compiled(function: Any, device_type: str) -> Any:
    """Compiled once for all sizes on a GPU; as it is on a CPU, where it makes dense tables (tiny sizes only)."""
    return torch.compile(function, dynamic=True) if device_type == "cuda" else function


def flex_packed(model: nn.Module, ids: Tensor, layout: ProbeLayout) -> Tensor:
    """Log-probs of the probes (K,) from one call of `model` on [trace, probes]; no logits of the trunk."""
    num_trunk, device = ids.numel(), ids.device
    mask = fork_mask(num_trunk, layout, device)
    attend_packed = compiled(flex_attention, device.type)

    def attend(call: AttentionCall) -> AttentionResult:
        out = attend_packed(
            call.query, call.key, call.value, block_mask=mask, scale=call.options.scaling, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None

    counted = counted_rows(layout)
    positions = torch.cat([torch.arange(num_trunk, device=device), send(layout.position_ids, device)])
    with override_attention(model, attend):
        fed = torch.cat([ids, send(layout.ids, device)])
        logits = row_logits(model, fed, positions, send(counted + num_trunk, device))
    log_probs = selected_log_probs(logits, send(layout.target_ids[counted], device))
    return sum_per_probe(log_probs, layout, counted)


def fork_mask(num_trunk: int, layout: ProbeLayout, device: torch.device) -> BlockMask:
    """Trunk tokens see the trunk up to themselves; a probe's see the trunk up to its limit, and their probe."""
    probe, limit = send(layout.probe_index(), device), send(layout.limit, device)
    trunk = torch.arange(num_trunk, device=device)
    reach = torch.cat([trunk + 1, limit[probe]])
    chain = torch.cat([torch.full_like(trunk, TRUNK), probe])
    total = num_trunk + layout.num_tokens

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_trunk = (chain[key] == TRUNK) & (key < reach[query])
        in_own_probe = (chain[query] != TRUNK) & (chain[key] == chain[query]) & (key <= query)
        return in_trunk | in_own_probe

    make = compiled(create_block_mask, device.type)
    return make(visible, None, None, total, total, device=str(device))
