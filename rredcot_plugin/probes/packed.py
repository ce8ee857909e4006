"""Backend `packed`: trunk rows and probes as one sequence in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.attention_hook import (
    AttentionCall,
    AttentionResult,
    check_angles,
    count_attention_layers,
    override_attention,
)
from rredcot_plugin.probes.capture import RowSpan, trunk_slices
from rredcot_plugin.probes.fork_attention import ForkPlan, fork_attention, plan_fork
from rredcot_plugin.probes.layout import ProbeLayout, row_spans_of
from rredcot_plugin.probes.log_probs import counted_rows, row_logits, selected_log_probs, sum_per_probe
from rredcot_plugin.probes.packed_rows import check_all_seen
from rredcot_plugin.probes.transfer import send
from rredcot_plugin.probes.trunk_attention import trunk_attention


def forward_packed(
    model: nn.Module,
    rows: Sequence[Tensor],
    layout: ProbeLayout,
    temperature: float = 1.0,
    *,
    trunk_rows: Tensor | None = None,
    group_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Trunk logits and probe log-probs from exactly one call of `model` on [row 0, row 1, ..., probes].

    Trunk tokens attend causally within their row and never see a probe. Gradients flow if the caller's grad
    mode is on.

    Args:
        rows: the unpadded tokens of each row, (T_i,) int64, on the model's device.
        layout: probes of these rows.
        trunk_rows: indices into the concatenated rows whose logits are wanted; None: all.

    Returns:
        trunk logits (len(trunk_rows), V), before the temperature; sums of counted log-probs (n,) float32, in
        the order given to `build_layout`.

    Raises:
        UnsupportedModelError: the model's attention does not go through transformers' registry in every
        layer, or its rotary angles depend on the length of the trunk.
    """
    check_angles(model)
    spans = row_spans_of([row.numel() for row in rows])
    device, num_trunk = rows[0].device, spans[-1][2]
    plan, probe_rows = plan_fork(layout, device, group_size), counted_rows(layout)
    num_layers = count_attention_layers(model)
    seen: set[int] = set()

    def attend(call: AttentionCall) -> AttentionResult:
        seen.add(call.layer)
        out = _packed_attention(call, spans, plan)
        return out.transpose(1, 2).contiguous(), None

    wanted = torch.arange(num_trunk, device=device) if trunk_rows is None else trunk_rows
    positions = [torch.arange(row.numel(), device=device) for row in rows]
    with override_attention(model, attend):
        logits = row_logits(
            model,
            torch.cat([*rows, send(layout.ids, device)]),
            torch.cat([*positions, plan.position]),
            torch.cat([wanted, send(probe_rows, device) + num_trunk]),
        )
    check_all_seen(seen, num_layers)
    log_probs = selected_log_probs(
        logits[wanted.numel() :], send(layout.target_ids[probe_rows], device), temperature
    )
    return logits[: wanted.numel()], sum_per_probe(log_probs, layout, probe_rows)


def _packed_attention(call: AttentionCall, spans: Sequence[RowSpan], plan: ForkPlan) -> Tensor:
    end = spans[-1][2]
    query, key, value = (part[:, :, :end] for part in (call.query, call.key, call.value))
    trunk = trunk_attention(query, key, value, spans, call.options)
    probe_query, probe_key, probe_value = (part[:, :, end:] for part in (call.query, call.key, call.value))
    trunk_kv = trunk_slices((key, value), spans)
    probes = fork_attention(probe_query, probe_key, probe_value, trunk_kv, plan, call.options)
    return torch.cat([trunk, probes], dim=2)
