"""Forwards of several rows packed into one sequence, each row attending to itself only; no probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.attention_hook import (
    AttentionCall,
    AttentionResult,
    count_attention_layers,
    override_attention,
)
from rredcot_plugin.probes.capture import RowSpan
from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.log_probs import row_logits
from rredcot_plugin.probes.trunk_attention import trunk_attention


@contextmanager
def packed_attention(
    model: nn.Module, spans: Sequence[RowSpan], watch: Callable[[AttentionCall], None] | None = None
) -> Iterator[None]:
    """Causal attention within each span, linear in memory; open during the backward too (checkpointed layers).

    Raises UnsupportedModelError on exit unless every layer came by.
    """
    num_layers = count_attention_layers(model)
    seen: set[int] = set()

    def attend(call: AttentionCall) -> AttentionResult:
        seen.add(call.layer)
        if watch is not None:
            watch(call)
        out = trunk_attention(call.query, call.key, call.value, spans, call.options)
        return out.transpose(1, 2).contiguous(), None

    with override_attention(model, attend):
        yield
    check_all_seen(seen, num_layers)


def packed_logits(model: nn.Module, rows: Sequence[Tensor], keep: Tensor) -> Tensor:
    """Logits (len(keep), V) of the tokens `keep` of the concatenated rows, in exactly one call of `model`."""
    positions = [torch.arange(row.numel(), device=row.device) for row in rows]
    return row_logits(model, torch.cat(list(rows)), torch.cat(positions), keep)


def check_starts(lengths: Sequence[int], answer_starts: Sequence[int]) -> None:
    """Raise ValueError unless there is an answer's start in [0, T_i] for each row."""
    if len(answer_starts) != len(lengths):
        raise ValueError(f"answer_starts has {len(answer_starts)} entries; expected {len(lengths)}, one a row")
    for row, (length, answer) in enumerate(zip(lengths, answer_starts, strict=True)):
        if not 0 <= answer <= length:
            raise ValueError(f"answer_starts[{row}] is {answer}; expected 0 to {length}, the tokens of its row")


def check_all_seen(seen: set[int], num_layers: int) -> None:
    """Raise UnsupportedModelError unless attention ran through the hook in every layer."""
    if len(seen) != num_layers:
        raise UnsupportedModelError(
            f"attention ran through transformers' registry in {len(seen)} of {num_layers} layers."
        )
