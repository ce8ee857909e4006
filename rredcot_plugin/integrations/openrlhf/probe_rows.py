"""Probes as rows of OpenRLHF's own forward, which knows how rows are packed, and how they and the model are cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from rredcot_plugin.probes.batched import as_rows, chunks, padded
from rredcot_plugin.probes.layout import ProbeSpec


def answer_as_rows(
    actor: Any,
    specs: list[list[ProbeSpec]],
    rows: Sequence[Sequence[int]],
    *,
    group: Any = None,
    max_tokens: int,
    in_step: bool = False,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Sum of the counted log-probs of every probe in nats, (n,) float32, in the order given.

    Args:
        actor: OpenRLHF's ``Actor``, in evaluation mode; it divides logits by its temperature.
        specs: per row its probes.
        rows: per row its token ids, without padding.
        group: the ranks of a ring, over which OpenRLHF cuts rows; all are asked for the same.
        max_tokens: padded tokens of one forward, at least one row; the pass itself shows how many fit.
        in_step: every rank runs as many forwards as the one with the most, as ZeRO-3 needs, which gathers parameters in them.
    """
    sequences = as_rows(specs, rows)
    found = torch.zeros(len(sequences), dtype=torch.float32, device=device)
    plan = list(chunks([len(tokens) for tokens, _ in sequences], max_tokens))
    for chunk in plan:
        found[chunk] = _log_probs(actor, [sequences[i] for i in chunk], group, device)
    for _ in range(_most(len(plan), device) - len(plan) if in_step else 0):
        _log_probs(actor, [([0, 0], 1)], group, device)
    return found


def _log_probs(
    actor: Any, sequences: list[tuple[list[int], int]], group: Any, device: torch.device | str
) -> torch.Tensor:
    ids, real, counted = padded(sequences, device)
    log_probs = actor(ids, attention_mask=real.long(), return_logprobs=True, ring_attn_group=group)
    return torch.where(counted[:, 1:], log_probs, 0.0).sum(dim=1)  # column j is token j + 1


def _most(number: int, device: torch.device | str) -> int:
    found = torch.tensor(number, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)
