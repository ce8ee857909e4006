"""From a model call on selected rows to one number a probe."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.layout import ProbeLayout
from rredcot_plugin.probes.transfer import send

ROWS_PER_CHUNK = 1024
"""Rows of logits that are turned into float32 at once."""


def selected_log_probs(logits: Tensor, target_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature)[target] in float32: logits (R, V), target_ids (R,) -> (R,)."""
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; expected a number greater than 0")
    out = torch.empty(target_ids.shape, dtype=torch.float32, device=logits.device)
    for start in range(0, target_ids.numel(), ROWS_PER_CHUNK):
        rows = slice(start, start + ROWS_PER_CHUNK)
        scaled = logits[rows].float() / temperature
        chosen = scaled.gather(-1, target_ids[rows, None])[:, 0]
        out[rows] = chosen - torch.logsumexp(scaled, dim=-1)
    return out


def row_logits(model: nn.Module, input_ids: Tensor, position_ids: Tensor, keep: Tensor) -> Tensor:
    """Logits (len(keep), V) of the rows `keep` of one sequence (T,), in exactly one call of `model`.

    The whole model is called, not its parts, so that what it does after the LM head (soft-capping, scaling)
    and the hooks of FSDP stay in force; so all kept rows of logits exist at once, in the model's dtype.

    Raises:
        UnsupportedModelError: the model trips over a mask that its attention is to ignore, as those do that make
            positions (XGLM) or position biases (Bloom) of it.
    """
    # a 4D mask is handed on as it is, so that nothing of size T x T is built for an attention that ignores it
    unread_mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=input_ids.device)
    try:
        output = model(
            input_ids=input_ids[None],
            position_ids=position_ids[None],
            attention_mask=unread_mask,
            use_cache=False,
            logits_to_keep=keep,
            **_without_router_loss(model),
        )
    except (TypeError, ValueError) as error:
        reason = f"{type(model).__name__} reads more of an attention mask than its attention does: {error}."
        raise UnsupportedModelError(reason) from error
    return pick_rows(output.logits[0], keep, input_ids.numel())


def _without_router_loss(model: nn.Module) -> dict[str, bool]:
    """What keeps a mixture of experts from computing its balancing loss, which reads the mask as one of two dimensions."""
    config = getattr(model, "config", None)
    return {"output_router_logits": False} if getattr(config, "output_router_logits", False) else {}


def pick_rows(logits: Tensor, keep: Tensor, num_rows: int) -> Tensor:
    """Rows `keep` of the first-but-last dimension, whether or not the model honoured `logits_to_keep`."""
    if logits.shape[-2] == keep.numel():
        return logits
    if logits.shape[-2] == num_rows:
        return logits[..., keep, :]
    raise UnsupportedModelError(
        f"the model gave logits for {logits.shape[-2]} rows; expected {keep.numel()} "
        f"(logits_to_keep) or {num_rows} (all)."
    )


def counted_rows(layout: ProbeLayout) -> Tensor:
    """Indices of the fed rows whose prediction counts."""
    return torch.nonzero(layout.token_offset() >= layout.skip[layout.probe_index()])[:, 0]


def sum_per_probe(log_probs: Tensor, layout: ProbeLayout, rows: Tensor) -> Tensor:
    """Sum of the log-probs (len(rows),) of fed rows `rows` over each probe: (n,) in the caller's order. The layout and
    `rows` may stay on the CPU, where their indices are had without waiting for a device."""
    longest, device = int(layout.length.max()) if layout.num_probes else 0, log_probs.device
    # a padded table and not an atomic add: the sum has the same rounding in every run
    table = log_probs.new_zeros((layout.num_probes, longest))
    table[send(layout.probe_index()[rows], device), send(layout.token_offset()[rows], device)] = log_probs
    sums = table.sum(dim=1)
    out = torch.empty_like(sums)
    out[send(layout.order, device)] = sums
    return out
