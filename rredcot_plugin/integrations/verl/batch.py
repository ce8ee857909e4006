"""Read what a credit step needs from TransferQueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq

from rredcot_plugin.rows import StepRows
from rredcot_plugin.types import Rollouts

FIELDS = [
    "uid",
    "prompts",
    "responses",
    "response_mask",
    "rm_scores",
    "rollout_log_probs",
    "reward_model",
    "extra_info",
]


def padded(nested: torch.Tensor, rows: Sequence[int], width: int, fill: float = 0.0) -> torch.Tensor:
    """Some rows of a jagged tensor as (len(rows), width), filled up on the right, cut where longer."""
    parts = nested.unbind()
    out = torch.full((len(rows), width), fill, dtype=parts[0].dtype)
    for i, row in enumerate(rows):
        part = parts[row][:width].cpu()
        out[i, : len(part)] = part
    return out


def onto_unmasked(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rewards (B, T) with what stands on masked tokens moved to the last unmasked one of its row.

    verl writes the outcome on the last token of the response, which belongs to a tool where the turns ran out, and
    its GRPO sums over all tokens.
    """
    columns = torch.arange(mask.shape[1])
    last = torch.where(mask, columns, 0).amax(dim=1, keepdim=True)
    stray = torch.where(mask, 0.0, rewards).sum(dim=1, keepdim=True)
    return torch.where(mask, rewards, 0.0).scatter_add(1, last, torch.where(mask.any(1, keepdim=True), stray, 0.0))


def read_rows(
    keys: Sequence[str],
    partition_id: str,
    active: Sequence[int],
    reference_column: str = "references",
) -> StepRows:
    """Fetch the batch and keep the active rows, without texts.

    ``log_probs`` are the rollout engine's, where it recorded them; a NaN among them counts as 0. References
    are the column of that name in the data set, or that key of its ``extra_info``.
    """
    fields = [*FIELDS, reference_column]
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=fields)
    lengths_all = data["responses"].offsets().diff().tolist()
    lengths = [lengths_all[row] for row in active]
    width = max([1, *lengths])
    ids = padded(data["responses"], active, width)
    mask = padded(data["response_mask"], active, width).bool()
    prompts = data["prompts"].unbind()
    surprise = data.get("rollout_log_probs", None)
    log_probs = padded(surprise, active, width).float().nan_to_num(0.0, 0.0, 0.0) if surprise is not None else None
    uids = list(data["uid"])
    rollouts = Rollouts(
        token_ids=ids,
        response_mask=mask,
        rewards=onto_unmasked(padded(data["rm_scores"], active, width).float(), mask),
        group_ids=[str(uids[row]) for row in active],
        log_probs=log_probs,
        ground_truths=_entries(data.get("reward_model", None), active, "ground_truth"),
        references=column_entries(data.get(reference_column, None), active)
        or _entries(data.get("extra_info", None), active, reference_column),
    )
    return StepRows(rollouts, [prompts[row] for row in active], [""] * len(lengths), lengths)


def column_entries(column: Any, active: Sequence[int]) -> list[Any] | None:
    """A column of the data set without verl's wrappers; None where there is no such column."""
    if column is None:
        return None
    entries = list(column)
    return [getattr(entries[row], "data", entries[row]) for row in active]


def _entries(column: Any, active: Sequence[int], key: str) -> list[Any] | None:
    """One key of a column of mappings, None where a row lacks it."""
    found = column_entries(column, active)
    return None if found is None else [e.get(key) if isinstance(e, dict) else None for e in found]
