"""Backend ``batched``: every probe an own row through plain ``compute_log_prob``. Any engine can do that.

Slow on purpose: each probe repeats the prefix of its trace. It serves engines that the probe engine does
not cover (Megatron, Ulysses, fused kernels), and as the reference that the others are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from rredcot_plugin.integrations.verl.media import text_positions
from rredcot_plugin.integrations.verl.transfer_fields import jagged
from rredcot_plugin.probes.layout import ProbeSpec

PARTITION = "rredcot_probes"


def batched_log_probs(
    worker_group: Any,
    traces: Sequence[torch.Tensor],
    specs: Sequence[Sequence[ProbeSpec]],
    *,
    temperature: float,
    multiple: int,
    max_tokens_per_gpu: int = 0,
    axes: int = 1,
) -> list[list[float]]:
    """Summed log-probs of the counted tokens of every probe, per trace in the order of ``specs``.

    Args:
        worker_group: verl's actor worker group.
        traces: prompt and response of each trace, (T_i,) int64.
        specs: per trace its (boundary, ids, skip).
        multiple: the number of rows must be divisible by it (ranks times micro-batch); filled with copies.
        max_tokens_per_gpu: of dynamic micro-batches; the longest row, which may be longer than any rollout, has room anyway.
        axes: of the model's position ids, `media.position_axes`.
    """
    rows = [
        (torch.cat([trace[:boundary], torch.tensor(ids, dtype=torch.int64)]), len(ids) - skip)
        for trace, row in zip(traces, specs, strict=True)
        for boundary, ids, skip in row
    ]
    if not rows:
        return [[] for _ in specs]
    real = len(rows)
    rows += [rows[0]] * (-real % multiple)
    keys = [f"rredcot-probe-{i}_0_0" for i in range(len(rows))]
    tq.kv_batch_put(
        keys=keys, partition_id=PARTITION, fields=_fields(rows, axes), tags=[_tag(ids) for ids, _ in rows]
    )
    meta = KVBatchMeta(
        partition_id=PARTITION,
        keys=keys,
        tags=[_tag(ids) for ids, _ in rows],
        extra_info={
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": temperature,
            "max_token_len_per_gpu": max(max_tokens_per_gpu, *(len(ids) for ids, _ in rows)),
        },
    )
    try:
        worker_group.compute_log_prob(meta)
        data = tq.kv_batch_get(keys=keys[:real], partition_id=PARTITION, select_fields=["log_probs"])
    finally:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
    # log_probs[t] belongs to token t + 1, so the last `counted` tokens end one place early
    sums = [
        float(values[-1 - counted : -1].double().sum())
        for values, (_, counted) in zip(data["log_probs"].unbind(), rows[:real], strict=True)
    ]
    flat = iter(sums)
    return [[next(flat) for _ in row] for row in specs]


def _fields(rows: Sequence[tuple[torch.Tensor, int]], axes: int) -> TensorDict:
    """The fields of a rollout row that the log-prob pass reads."""
    ids = [row for row, _ in rows]
    masks = [torch.ones(counted, dtype=torch.int64) for _, counted in rows]
    return TensorDict(
        {
            "input_ids": jagged(ids),
            "position_ids": jagged([text_positions(len(row), axes) for row in ids]),
            "prompts": jagged([row[: len(row) - counted] for row, counted in rows]),
            "responses": jagged([row[len(row) - counted :] for row, counted in rows]),
            "response_mask": jagged(masks),
            "loss_mask": jagged(masks),
        },
        batch_size=len(rows),
    )


def _tag(ids: torch.Tensor) -> dict[str, Any]:
    return {"status": "success", "seq_len": len(ids)}
