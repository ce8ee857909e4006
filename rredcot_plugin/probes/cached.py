"""Backend `cached`: the probes in one extra call, reading the keys and values of the trunk forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.attention_hook import AttentionCall, AttentionResult, override_attention
from rredcot_plugin.probes.capture import CapturedTrunk, RowSpan, trunk_slices
from rredcot_plugin.probes.fork_attention import fork_attention, plan_fork
from rredcot_plugin.probes.layout import ProbeLayout, filler_layout
from rredcot_plugin.probes.log_probs import counted_rows, row_logits, selected_log_probs, sum_per_probe
from rredcot_plugin.probes.transfer import send


@torch.no_grad()
def forward_probes(
    model: nn.Module,
    captured: CapturedTrunk,
    layout: ProbeLayout,
    row_spans: Sequence[RowSpan],
    temperature: float = 1.0,
    *,
    group_size: int | None = None,
) -> Tensor:
    """Sum of the counted log-probs of every probe, (n,) float32, in the order given to `build_layout`.

    Calls `model` exactly once, also for a layout without probes (then with one filler token), so that the
    ranks of a sharded model stay in step. The caller's autocast context applies. The logits of all counted
    rows exist at once, in the model's dtype: (counted rows, V); only their float32 copies are made in
    chunks.

    Args:
        model: the causal LM that ran inside `capture_trunk`, wrapped (FSDP, PEFT) or not.
        captured: what `capture_trunk` yielded.
        layout: probes of the rows; `layout.row` indexes `row_spans`.
        row_spans: where the unpadded tokens of each row stood in that forward; their position ids must have
            started at 0.
        temperature: divides the logits.
        group_size: probe tokens per attention call, None: what suits the device; changes speed, not results.

    Raises:
        UnsupportedModelError: not every layer was captured.
        ValueError: a probe's row has no span, or one shorter than what the probe sees.
    """
    captured.check_complete()
    _check_spans(layout, row_spans)
    fed = layout if layout.num_probes else filler_layout()
    device = next(iter(captured.layers.values()))[0].device
    # what follows from the layout alone is worked out on the CPU: nothing here waits for the trunk's forward to end
    plan, rows = plan_fork(fed, device, group_size), counted_rows(fed)

    def attend(call: AttentionCall) -> AttentionResult:
        trunk_kv = trunk_slices(captured.layers[call.layer], row_spans)
        out = fork_attention(call.query, call.key, call.value, trunk_kv, plan, call.options)
        return out.transpose(1, 2).contiguous(), None

    with override_attention(model, attend):
        logits = row_logits(model, send(fed.ids, device), plan.position, send(rows, device))
    log_probs = selected_log_probs(logits, send(fed.target_ids[rows], device), temperature)
    return sum_per_probe(log_probs, fed, rows)[: layout.num_probes]


def _check_spans(layout: ProbeLayout, row_spans: Sequence[RowSpan]) -> None:
    for row, limit in zip(layout.row.tolist(), layout.limit.tolist(), strict=True):
        if row >= len(row_spans):
            raise ValueError(f"row_spans has {len(row_spans)} rows, a probe stands in row {row}")
        _, start, end = row_spans[row]
        if limit > end - start:
            raise ValueError(f"a probe sees {limit} tokens of row {row}, its span has {end - start}")
