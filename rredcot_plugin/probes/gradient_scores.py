"""Attribution by gradient: how much the log-probability of a trace's answer depends on each earlier token.

Needs torch; transformers is imported only when a model is used. One forward and one backward; of the logits only
the answer's exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.capture import RowSpan
from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.layout import row_spans_of
from rredcot_plugin.probes.log_probs import ROWS_PER_CHUNK
from rredcot_plugin.probes.packed_rows import check_starts, packed_attention, packed_logits


def gradient_attribution(
    model: nn.Module, rows: Sequence[Tensor], answer_starts: Sequence[int], temperature: float = 1.0
) -> list[Tensor]:
    """Input x gradient: |<e_t, d log pi(answer | all before it) / d e_t>| of each token before the answer.

    e_t is the output of the embedding layer at token t; the product is the first-order change of the answer's
    log-probability (nats, at `temperature`) when e_t is scaled, so a model that scales its embeddings changes
    nothing. 0 at and after the answer's start. Source: input x gradient (arXiv 1605.01713), one of the
    attribution baselines of RREDCoT (arXiv 2606.06475).

    Calls `model` exactly once, on all rows packed into one sequence, with one backward, also when no row has an
    answer, so that the ranks of a sharded model stay in step. Rows do not see each other. Where rotary angles depend on the
    length (rope_type dynamic or longrope), all rows have those of the longest, as in any batch. No gradient of a
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
    check_starts(lengths, answer_starts)
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; expected a number greater than 0")
    spans = row_spans_of(lengths)
    predicted = _answer_tokens(spans, answer_starts).to(rows[0].device)
    with _eval_mode(model), torch.enable_grad(), packed_attention(model, spans), _embedding_leaf(model) as leaves:
        logits = packed_logits(model, rows, (predicted - 1).clamp(min=0))
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
def _embedding_leaf(model: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the graph after the embedding layer; the list holds the leaf that stands there once it ran.

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
