"""Attribution: how much the answer of a trace depends on each earlier token, by attention or by gradient.

Needs torch; transformers is imported only when a model is used. Attention is read while a forward of the caller
runs anyway (`capture_attention`), or in one of its own (`attention_attribution`); the gradient takes one forward
and one backward (`gradient_attribution`). No T x T table and no logits but the answer's exist at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
from rredcot_plugin.probes.log_probs import ROWS_PER_CHUNK, row_logits
from rredcot_plugin.probes.trunk_attention import trunk_attention

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

        One (T_i,) float32 tensor a row, 0 at and behind the answer's start. At most 1 in sum; what is missing
        was paid to the answer itself.

        Raises:
            UnsupportedModelError: not every layer was seen.
        """
        _check_all_seen(self.seen, self.num_layers)
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
    _check_starts([end - start for _, start, end in row_spans], answer_starts)
    captured = CapturedAttention(row_spans, answer_starts, count_attention_layers(model))

    def watch(call: AttentionCall) -> AttentionResult:
        captured.add(call)
        return call.run_original()

    with override_attention(model, watch):
        yield captured


@torch.no_grad()
def attention_attribution(model: nn.Module, rows: Sequence[Tensor], answer_starts: Sequence[int]) -> list[Tensor]:
    """`capture_attention` around a forward of its own: per row (T_i,) float32.

    Calls `model` exactly once, on all rows packed into one sequence. Arguments and errors as in
    `gradient_attribution`.
    """
    _check_starts([row.numel() for row in rows], answer_starts)
    spans = row_spans_of([row.numel() for row in rows])
    captured = CapturedAttention(spans, answer_starts, count_attention_layers(model))
    with _packed_attention(model, spans, captured.add):
        _packed_logits(model, rows, torch.zeros(1, dtype=torch.int64, device=rows[0].device))
    return captured.scores()


def gradient_attribution(
    model: nn.Module, rows: Sequence[Tensor], answer_starts: Sequence[int], temperature: float = 1.0
) -> list[Tensor]:
    """Input x gradient: |<e_t, d log pi(answer | all before it) / d e_t>| of each token before the answer.

    e_t is the output of the embedding layer at token t; the product is the first-order change of the answer's
    log-probability (nats, at `temperature`) when e_t is scaled, so a model that scales its embeddings changes
    nothing. 0 at and behind the answer's start. Source: input x gradient (arXiv 1605.01713), one of the
    attribution baselines of RREDCoT (arXiv 2606.06475).

    Calls `model` exactly once, on all rows packed into one sequence, with one backward, also when no row has an
    answer, so that the ranks of a sharded model stay in step. Rows do not see each other. No gradient of a
    parameter is computed, and those that exist stay as they are. Runs in eval mode, whatever the mode was, and
    under the caller's autocast. Memory: the activations of a training step of these rows (checkpointed layers
    where the model has that switched on), and twice the answer's logits (answer tokens, V) in the model's dtype.

    Args:
        model: a transformers causal LM, wrapped (FSDP2, PEFT) or not, full or sliding-window attention.
        rows: the unpadded tokens of each row, (T_i,) int64, T_i >= 1, on the model's device; at least one row.
        answer_starts: per row the offset of the answer's first token, in [0, T_i]. 0 (nothing before the answer)
            and T_i (no answer) give zeros.
        temperature: divides the logits; greater than 0.

    Returns:
        per row (T_i,) float32, not negative.

    Raises:
        ValueError: an answer start outside its row, not one a row, or a temperature that is not positive.
        UnsupportedModelError: attention that does not go through transformers' registry in every layer, or an
            embedding layer that is missing or does not run once on these tokens.
    """
    lengths = [row.numel() for row in rows]
    _check_starts(lengths, answer_starts)
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; allowed: greater than 0")
    spans = row_spans_of(lengths)
    predicted = _answer_tokens(spans, answer_starts).to(rows[0].device)
    with _eval_mode(model), torch.enable_grad(), _packed_attention(model, spans), _embedding_leaf(model) as leaves:
        logits = _packed_logits(model, rows, (predicted - 1).clamp(min=0))
        if len(leaves) != 1 or leaves[0].shape[:-1] != (1, sum(lengths)):
            raise UnsupportedModelError(
                "the model's embedding layer did not run once, on the tokens it was given."
            )
        targets = torch.cat(list(rows))[predicted]
        upstream = log_prob_gradient(logits.detach(), targets, temperature)
        # only towards the embeddings: autograd then computes no gradient of any parameter
        (gradient,) = torch.autograd.grad(logits, leaves, upstream)
    products = (gradient[0].float() * leaves[0].detach()[0].float()).sum(dim=-1).abs()
    parts = products.split(lengths)
    return [_only_before(part, answer) for part, answer in zip(parts, answer_starts, strict=True)]


def answer_attention(query: Tensor, key: Tensor, answer_start: int, options: AttentionOptions) -> Tensor:
    """One row, one layer: mean over heads and answer queries of the attention to each earlier token.

    query (H, T, D), key (H_kv, T, D), index = position id -> (T,) float32, 0 from `answer_start` on.
    """
    heads, num_tokens = query.shape[:2]
    total = torch.zeros(num_tokens, dtype=torch.float32, device=query.device)
    if not 0 < answer_start < num_tokens:
        return total
    window = num_tokens if options.window is None else options.window
    # a query further behind sees nothing before the answer through its window
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


def log_prob_gradient(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """d sum_r log softmax(logits_r / temperature)[target_r] / d logits = (onehot - softmax) / temperature.

    Written out, in chunks, because autograd would keep float32 copies of all logits: (R, V), (R,) -> (R, V).
    """
    out = torch.empty_like(logits)
    for start in range(0, len(targets), ROWS_PER_CHUNK):
        rows = slice(start, start + ROWS_PER_CHUNK)
        rest = -torch.softmax(logits[rows].float() / temperature, dim=-1)
        chosen = targets[rows, None]
        out[rows] = rest.scatter_add(1, chosen, torch.ones_like(chosen, dtype=rest.dtype)) / temperature
    return out


@contextmanager
def _packed_attention(
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
    _check_all_seen(seen, num_layers)


def _packed_logits(model: nn.Module, rows: Sequence[Tensor], keep: Tensor) -> Tensor:
    positions = [torch.arange(row.numel(), device=row.device) for row in rows]
    return row_logits(model, torch.cat(list(rows)), torch.cat(positions), keep)


@contextmanager
def _embedding_leaf(model: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the graph behind the embedding layer; the list holds the leaf that stands there once it ran.

    A hook and not `inputs_embeds`, because a sharded embedding has its weights only inside the model's forward.
    """
    leaves: list[Tensor] = []

    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    try:
        embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError) as error:
        raise UnsupportedModelError(f"{type(model).__name__} has no input embeddings.") from error
    handle = embedding.register_forward_hook(cut)
    try:
        yield leaves
    finally:
        handle.remove()


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode with activation checkpointing still in force where the model has it on; modes are put back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    for layer in _checkpointed_layers(model):
        layer.training = True  # this module's flag only, not its children's: transformers checkpoints by it
    try:
        yield
    finally:
        model.eval()
        for module in training:
            module.training = True


def _checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """Layers with checkpointing on, but for the reentrant kind, which knows no gradient of chosen inputs."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]
    return [
        layer
        for layer in layers
        if getattr(layer._gradient_checkpointing_func, "keywords", {}).get("use_reentrant") is False
    ]


def _answer_tokens(spans: Sequence[RowSpan], answer_starts: Sequence[int]) -> Tensor:
    """Indices of the answers' tokens in the packed rows; [0] where there is none, so that something can run."""
    parts = [
        torch.arange(start + answer, end)
        for (_, start, end), answer in zip(spans, answer_starts, strict=True)
        if answer > 0
    ]
    found = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
    return found if found.numel() else torch.zeros(1, dtype=torch.int64)


def _only_before(scores: Tensor, answer_start: int) -> Tensor:
    """Zero from `answer_start` on, and everywhere in a row without an answer."""
    keep = answer_start if answer_start < len(scores) else 0
    out = torch.zeros_like(scores)
    out[:keep] = scores[:keep]
    return out


def _check_starts(lengths: Sequence[int], answer_starts: Sequence[int]) -> None:
    if len(answer_starts) != len(lengths):
        raise ValueError(f"answer_starts has {len(answer_starts)} entries; expected {len(lengths)}, one a row")
    for row, (length, answer) in enumerate(zip(lengths, answer_starts, strict=True)):
        if not 0 <= answer <= length:
            raise ValueError(f"answer_starts[{row}] is {answer}; allowed: 0 to {length}, the tokens of its row")


def _check_all_seen(seen: set[int], num_layers: int) -> None:
    if len(seen) != num_layers:
        raise UnsupportedModelError(
            f"attention ran through transformers' registry in {len(seen)} of {num_layers} layers."
        )
