"""Read what a credit step needs from TransferQueue, and turn tokens into text with exact offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.types import Rollouts

FIELDS = ["uid", "prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "reward_model"]
PROMPT_TAIL = 16
"""Tokens of the prompt's end that are looked at for an opened ``<think>``."""


@dataclass(frozen=True)
class StepRows:
    """The active rows of a batch: B responses, right-padded to T tokens."""

    rollouts: Rollouts
    prompts: list[torch.Tensor]
    prompt_tails: list[str]
    lengths: list[int]


def padded(nested: torch.Tensor, rows: Sequence[int], width: int, fill: float = 0.0) -> torch.Tensor:
    """Some rows of a jagged tensor as (len(rows), width), filled up on the right, cut where longer."""
    parts = nested.unbind()
    out = torch.full((len(rows), width), fill, dtype=parts[0].dtype)
    for i, row in enumerate(rows):
        part = parts[row][:width].cpu()
        out[i, : len(part)] = part
    return out


def read_rows(keys: Sequence[str], partition_id: str, active: Sequence[int], table: TokenBytes) -> StepRows:
    """Fetch the batch and keep the active rows.

    ``log_probs`` are the rollout engine's, where it recorded them; a NaN among them counts as 0.
    """
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=FIELDS)
    lengths_all = data["responses"].offsets().diff().tolist()
    lengths = [lengths_all[row] for row in active]
    width = max([1, *lengths])
    ids = padded(data["responses"], active, width)
    mask = padded(data["response_mask"], active, width).bool()
    aligned = [table.align(ids[i, :n].numpy()) for i, n in enumerate(lengths)]
    texts = [text for text, _ in aligned]
    spans = [span[mask[i, :n].numpy()] for i, ((_, span), n) in enumerate(zip(aligned, lengths, strict=True))]
    prompts = data["prompts"].unbind()
    surprise = data.get("rollout_log_probs", None)
    log_probs = padded(surprise, active, width).float().nan_to_num(0.0, 0.0, 0.0) if surprise is not None else None
    uids = list(data["uid"])
    rollouts = Rollouts(
        token_ids=ids,
        response_mask=mask,
        rewards=padded(data["rm_scores"], active, width).float(),
        group_ids=[str(uids[row]) for row in active],
        log_probs=log_probs,
        texts=texts,
        token_offsets=spans,  # arrays (n, 2) instead of lists of pairs
        ground_truths=_ground_truths(data.get("reward_model", None), active),
    )
    tails = [table.align(prompts[row][-PROMPT_TAIL:].cpu().numpy())[0] for row in active]
    return StepRows(rollouts, [prompts[row] for row in active], tails, lengths)


def _ground_truths(reward_model: Any, active: Sequence[int]) -> list[Any] | None:
    if reward_model is None:
        return None
    entries = list(reward_model)
    truths = []
    for row in active:
        entry = getattr(entries[row], "data", entries[row])
        truths.append(entry.get("ground_truth") if isinstance(entry, dict) else None)
    return truths
