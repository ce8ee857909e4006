"""Backend ``batched``: every probe an own row through plain ``compute_log_prob``. Any engine can do that.

Slow on purpose: each probe repeats the prefix of its trace. It serves engines that the probe engine does
not cover (Megatron, Ulysses, fused kernels), and as the reference that the others are tested against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from rredcot_plugin.integrations.verl.media import text_positions
from rredcot_plugin.integrations.verl.transfer_fields import jagged
from rredcot_plugin.probes.layout import ProbeSpec

PARTITION = "rredcot_probes"

MOST_ROWS, MOST_TOKENS = 4096, 1 << 24
"""That lie in TransferQueue at once, about: its number of rows is limited, and every probe repeats the prefix of its trace."""

Row = tuple[torch.Tensor, int]
"""The token ids of a prefix and a probe after it, and how many of the last ones count."""


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
    info = {
        "calculate_entropy": False,
        "compute_loss": False,
        "temperature": temperature,
    }
    sums: list[float] = []
    for chunk in _chunks(_rows(traces, specs), multiple):
        sums += _sums(worker_group, chunk, multiple, max_tokens_per_gpu, axes, info)
    flat = iter(sums)
    return [[next(flat) for _ in row] for row in specs]


def _rows(traces: Sequence[torch.Tensor], specs: Sequence[Sequence[ProbeSpec]]) -> Iterator[Row]:
    """One after another, since all of them together may not fit into memory."""
    for trace, row in zip(traces, specs, strict=True):
        for boundary, ids, skip in row:
            yield (torch.cat([trace[:boundary], torch.tensor(ids, dtype=torch.int64)]), len(ids) - skip)


def _chunks(rows: Iterator[Row], multiple: int) -> Iterator[list[Row]]:
    """The rows in order, ``MOST_ROWS`` or about ``MOST_TOKENS`` at a time; only the last chunk may have to be filled with copies."""
    chunk: list[Row] = []
    tokens = 0
    for row in rows:
        chunk.append(row)
        tokens += len(row[0])
        if len(chunk) % multiple == 0 and (len(chunk) + multiple > MOST_ROWS or tokens >= MOST_TOKENS):
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk


def _sums(
    worker_group: Any,
    rows: list[Row],
    multiple: int,
    max_tokens_per_gpu: int,
    axes: int,
    info: dict[str, Any],
) -> list[float]:
    """Summed log-probs of one chunk of rows, of which nothing stays in TransferQueue."""
    real = len(rows)
    rows = rows + [rows[0]] * (-real % multiple)
    keys = [f"rredcot-probe-{i}_0_0" for i in range(len(rows))]
    tags = [_tag(ids) for ids, _ in rows]
    longest = max(max_tokens_per_gpu, *(len(ids) for ids, _ in rows))
    info = {**info, "max_token_len_per_gpu": longest}
    meta = KVBatchMeta(partition_id=PARTITION, keys=keys, tags=tags, extra_info=info)
    try:
        # a put that fails may have written some of the rows
        tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=_fields(rows, axes), tags=tags)
        worker_group.compute_log_prob(meta)
        data = tq.kv_batch_get(keys=keys[:real], partition_id=PARTITION, select_fields=["log_probs"])
    finally:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
    # log_probs[t] belongs to token t + 1, so the last `counted` tokens end one place early
    return [
        float(values[-1 - counted : -1].double().sum())
        for values, (_, counted) in zip(data["log_probs"].unbind(), rows[:real], strict=True)
    ]


def _fields(rows: Sequence[Row], axes: int) -> TensorDict:
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
