"""Attribution by attention: how much the answer of a trace looks at each earlier token.

Needs torch; transformers is imported only when a model is used. Read while a forward of the caller runs anyway
(`capture_attention`), or in one of its own (`attention_attribution`). No T x T table exists at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

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
from rredcot_plugin.probes.kernels import AttentionOptions
from rredcot_plugin.probes.layout import row_spans_of
from rredcot_plugin.probes.packed_rows import check_all_seen, check_starts, packed_attention, packed_logits

QUERY_BLOCK = 64
"""Answer tokens whose attention probabilities exist at once: heads x 64 x T float32."""


@dataclass(frozen=True)
class CapturedAttention:
    """Running sums over the layers of one forward; `scores` gives the result."""

    row_spans: Sequence[RowSpan]
    answer_starts: Sequence[int]
    num_layers: int
    sums: list[Tensor] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def add(self, call: AttentionCall) -> None:
        """Add what one layer attends to. UnsupportedModelError: the layer ran before, or not on whole rows."""
        if call.layer in self.seen:
            raise UnsupportedModelError(f"attention layer {call.layer} ran twice inside one capture_attention.")
        if call.query.shape[2] != call.key.shape[2]:
            raise UnsupportedModelError("the forward reads keys from a cache; attention needs whole rows.")
        self.seen.add(call.layer)
        found = [
            answer_attention(call.query[b, :, first:end], call.key[b, :, first:end], answer, call.options)
            for (b, first, end), answer in zip(self.row_spans, self.answer_starts, strict=True)
        ]
        self.sums[:] = [a + b for a, b in zip(self.sums, found, strict=True)] if self.sums else found

    def scores(self) -> list[Tensor]:
        """Mean over layers, heads and answer tokens of the attention paid to each token before the answer.

        One (T_i,) float32 tensor a row, 0 at and after the answer's start. At most 1 in sum; what is missing
        was paid to the answer itself.

        Raises:
            UnsupportedModelError: not every layer was seen.
        """
        check_all_seen(self.seen, self.num_layers)
        return [total / self.num_layers for total in self.sums]


@contextmanager
def capture_attention(
    model: nn.Module, row_spans: Sequence[RowSpan], answer_starts: Sequence[int]
) -> Iterator[CapturedAttention]:
    """Yield an object that knows the answer's attention once one forward of `model` ran inside.

    The forward may be of padded rows (B, T) or of packed rows (1, total); its outputs stay bit-identical. Each
    layer's probabilities are computed anew, in float32, for the answer's queries only: work A x T a head,
    memory QUERY_BLOCK x T. Nothing of the layers is kept.

    Args:
        row_spans: where the unpadded tokens of each row stand in that forward.
        answer_starts: per row the offset of the answer's first token, in [0, T_i]. 0 (nothing before the answer)
            and T_i (no answer) give zeros.

    Raises:
        ValueError: an answer start outside its row, or not one a row.
        UnsupportedModelError: layers that are not attention, a layer that runs twice inside.
    """
    check_starts([end - start for _, start, end in row_spans], answer_starts)
    captured = CapturedAttention(row_spans, answer_starts, count_attention_layers(model))

    def watch(call: AttentionCall) -> AttentionResult:
        captured.add(call)
        return call.run_original()

    with override_attention(model, watch):
        yield captured


@torch.no_grad()
def attention_attribution(model: nn.Module, rows: Sequence[Tensor], answer_starts: Sequence[int]) -> list[Tensor]:
    """`capture_attention` around a forward of its own: per row (T_i,) float32.

    Calls `model` exactly once, on all rows packed into one sequence. Arguments, errors and rotary angles that
    depend on the length are as in `gradient_attribution`.
    """
    check_starts([row.numel() for row in rows], answer_starts)
    spans = row_spans_of([row.numel() for row in rows])
    captured = CapturedAttention(spans, answer_starts, count_attention_layers(model))
    with packed_attention(model, spans, captured.add):
        packed_logits(model, rows, torch.zeros(1, dtype=torch.int64, device=rows[0].device))
    return captured.scores()


def answer_attention(query: Tensor, key: Tensor, answer_start: int, options: AttentionOptions) -> Tensor:
    """One row, one layer: mean over heads and answer queries of the attention to each earlier token.

    query (H, T, D), key (H_kv, T, D), index = position id -> (T,) float32, 0 from `answer_start` on.
    """
    heads, num_tokens = query.shape[:2]
    total = torch.zeros(num_tokens, dtype=torch.float32, device=query.device)
    if not 0 < answer_start < num_tokens:
        return total
    window = num_tokens if options.window is None else options.window
    # a query further on sees nothing before the answer through its window
    last = min(num_tokens, answer_start + window - 1)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        for start in range(answer_start, last, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, last)
            first = max(0, start - window + 1)
            weights = _probabilities(query[:, start:stop], key[:, first:stop], start - first, window, options)
            total[first:answer_start] += weights[..., : answer_start - first].sum(dim=(0, 1, 2))
    return total / (heads * (num_tokens - answer_start))


def _probabilities(query: Tensor, key: Tensor, offset: int, window: int, options: AttentionOptions) -> Tensor:
    """softmax over the visible keys, (H_kv, H / H_kv, L, S) float32; query row i stands at key `offset` + i."""
    heads, num_queries, dim = query.shape
    scaling = dim**-0.5 if options.scaling is None else options.scaling
    # heads that share a key head are folded into the query dimension, so keys are never repeated
    folded = query.float().reshape(key.shape[0], -1, dim) * scaling
    scores = folded @ key.float().transpose(-1, -2)
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    index = torch.arange(key.shape[1], device=key.device)
    distance = index[offset : offset + num_queries, None] - index
    visible = (distance >= 0) & (distance < window)
    scores = scores.view(key.shape[0], heads // key.shape[0], num_queries, key.shape[1])
    return scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
