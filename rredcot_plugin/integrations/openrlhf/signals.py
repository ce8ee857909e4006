"""What the logits of OpenRLHF's pass say of the distributions that actions were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from openrlhf.models.ring_attn_utils import gather_and_pad_tensor

from rredcot_plugin.probes.capture import RowSpan
from rredcot_plugin.probes.squares import sum_pi_squared

BLOCK = 1024
"""Tokens of a rank's share that are in float32 together."""


def signals(
    logits: torch.Tensor, spans: Sequence[RowSpan], action_mask: torch.Tensor, *, squares: bool
) -> dict[str, torch.Tensor]:
    """Entropies in nats and, if asked for, Σ_v π_v² of the actions, (B, T−1), 0 where there is none.

    One row at a time, from logits (rows, length, V) at the temperature of the pass; ``spans`` say where each row stands in them.
    """
    mask = action_mask.bool().cpu()
    found: dict[str, torch.Tensor] = {}
    for number, (row, first, _) in enumerate(spans):
        at = mask[number].nonzero()[:, 0]
        for own in at.split(BLOCK):
            for name, numbers in _of_tokens(logits[row, (first + own).to(logits.device)], squares=squares).items():
                found.setdefault(name, torch.zeros(mask.shape))[number, own] = numbers.cpu()
    return found


def ring_signals(
    logits: torch.Tensor, attention_mask: torch.Tensor, action_mask: torch.Tensor, group: Any, *, squares: bool
) -> dict[str, torch.Tensor]:
    """The same from this rank's share (1, length, V) of packed rows, put together over the ranks of a ring."""
    blocks = [_of_tokens(block, squares=squares) for block in logits[0].split(BLOCK)]
    real = attention_mask.bool()
    places, padding = real.flatten().nonzero().flatten(), -int(real.sum()) % dist.get_world_size(group)
    mask, found = action_mask.bool().cpu(), {}
    for name in blocks[0]:
        share = torch.cat([block[name] for block in blocks])[None]
        whole = gather_and_pad_tensor(share, group, padding, places.to(share.device), *real.shape)
        found[name] = torch.where(mask, whole.cpu()[:, : mask.shape[1]], 0.0)
    return found


def _of_tokens(logits: torch.Tensor, *, squares: bool) -> dict[str, torch.Tensor]:
    """Numbers of tokens, (n,), whose logits are (n, V)."""
    own = logits.float()
    log_probs = own.log_softmax(-1)
    found = {"entropies": -(log_probs.exp() * log_probs).sum(-1)}
    if squares:
        found["sum_pi_squared"] = sum_pi_squared(own, own.new_ones(len(own)))
    return found
