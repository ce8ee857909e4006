"""What a credit step reads from TransferQueue, and lays down there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict

from rredcot_plugin.adapter.process_rewards import FIELD as PROCESS_REWARDS
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import media, transfer_fields
from rredcot_plugin.types import Rollouts
from rredcot_plugin.values.environment import FIELD, turn_values

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

REWARD_FIELDS = ["data_source", "reward_model", "extra_info", "raw_prompt", "tools_kwargs", "uid"]

MEDIA_ROWS = 16

SIGNALS = {"old_log_probs": "log_probs", "entropy": "entropies", transfer_fields.SUM_PI_SQUARED: "sum_pi_squared"}
"""Fields of the log-prob pass, and the fields of ``Rollouts`` that they become."""


def padded(nested: torch.Tensor, width: int) -> torch.Tensor:
    """A jagged tensor as (rows, width), filled up with 0 on the right, cut where longer."""
    parts = nested.unbind()
    out = torch.zeros(len(parts), width, dtype=parts[0].dtype)
    for row, part in enumerate(parts):
        part = part[:width].cpu()
        out[row, : len(part)] = part
    return out


def signal(nested: torch.Tensor, width: int) -> torch.Tensor:
    """Numbers of tokens as (rows, width); 0 for one that is not finite."""
    return padded(nested, width).float().nan_to_num(0.0, 0.0, 0.0)


def onto_unmasked(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rewards (B, T) with what stands on masked tokens moved to the unmasked one before them, the first one of the row if
    there is none.

    verl writes the outcome on the last token of the response, which belongs to a tool where the turns ran out, and
    its GRPO sums over all tokens. What is paid on a tool's answer is paid for the turn that asked for it.
    """
    columns = torch.arange(mask.shape[1])
    first = mask.long().argmax(dim=1, keepdim=True)
    before = torch.maximum(torch.where(mask, columns, 0).cummax(dim=1).values, first)
    stray = torch.where(~mask & mask.any(1, keepdim=True), rewards, 0.0)
    return torch.where(mask, rewards, 0.0).scatter_add(1, before, stray)


@dataclass(frozen=True)
class BatchSource:
    """The active rows of a batch as they lie in TransferQueue: light enough to be sent to whoever reads them."""

    keys: list[str]
    partition_id: str
    reference_column: str = "references"

    def take(self, index: Sequence[int]) -> BatchSource:
        """Some of the rows."""
        return dataclasses.replace(self, keys=[self.keys[i] for i in index])

    def group_ids(self) -> list[str]:
        return [str(uid) for uid in self._get(["uid"])["uid"]]

    def rows(self) -> PromptedRollouts:
        """Fetch the rows, without texts.

        ``log_probs`` are the rollout engine's, where it recorded them; a NaN among them counts as 0. References
        are the column of that name in the data set, or that key of its ``extra_info``.
        """
        data = self._get([*FIELDS, "extra_fields", PROCESS_REWARDS, self.reference_column])
        lengths = data["responses"].offsets().diff().tolist()
        width = max([1, *lengths])
        mask = padded(data["response_mask"], width).bool()
        recorded = data.get("rollout_log_probs", None)
        rollouts = Rollouts(
            token_ids=padded(data["responses"], width),
            response_mask=mask,
            rewards=onto_unmasked(padded(data["rm_scores"], width).float(), mask),
            group_ids=[str(uid) for uid in data["uid"]],
            log_probs=None if recorded is None else signal(recorded, width),
            ground_truths=entries_of(data.get("reward_model", None), "ground_truth"),
            references=column_entries(data.get(self.reference_column, None))
            or entries_of(data.get("extra_info", None), self.reference_column),
        )
        said = entries_of(entries_of(data.get("extra_fields", None), "reward_extra_info"), PROCESS_REWARDS)
        told = said_at_all(said) or said_at_all(column_entries(data.get(PROCESS_REWARDS, None)))
        return PromptedRollouts(rollouts, list(data["prompts"].unbind()), [""] * len(lengths), lengths, told=told)

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        """The actor's ``log_probs`` and ``entropies`` (rows, width), those that there are."""
        data = self._get(list(SIGNALS))
        return {name: signal(data[field], width) for field, name in SIGNALS.items() if field in data}

    def numbers(self, fields: Sequence[str], width: int) -> list[torch.Tensor]:
        """Fields of numbers of tokens, each as (rows, width); 0 in the padding."""
        data = self._get(list(fields))
        return [padded(data[field], width).float() for field in fields]

    def turn_values(self, width: int) -> torch.Tensor:
        """The numbers of each row's ``extra_fields["state_values"]`` in their places, NaN elsewhere."""
        data = self._get(["response_mask", "extra_fields"])
        said = entries_of(data.get("extra_fields", None), FIELD) or [None] * len(self.keys)
        return turn_values(padded(data["response_mask"], width).bool(), said)

    def has_media(self) -> bool:
        """Whether a row has images, video or sound; asked of a few rows at a time, which are large if they have."""
        for start in range(0, len(self.keys), MEDIA_ROWS):
            some = dataclasses.replace(self, keys=self.keys[start : start + MEDIA_ROWS])
            if any(column_entries(some._get([media.FIELD]).get(media.FIELD, None)) or []):
                return True
        return False

    def answers(self) -> list[torch.Tensor]:
        """Per row the seconds and log-probs of its probes, as the engine has written them."""
        return [row.cpu() for row in self._get([transfer_fields.LOG_PROBS])[transfer_fields.LOG_PROBS].unbind()]

    def reward_fields(self) -> list[dict[str, Any]]:
        """What verl's reward workers get of each row beside its tokens."""
        data = self._get(REWARD_FIELDS)
        columns = {name: column_entries(data.get(name, None)) for name in REWARD_FIELDS}
        known = {name: column for name, column in columns.items() if column is not None}
        return [{name: column[i] for name, column in known.items()} for i in range(len(self.keys))]

    def put_probes(self, vectors: Sequence[torch.Tensor]) -> None:
        """Lay down what ``probes.layout.pack`` made of every row's probes, for the engine."""
        self._put({transfer_fields.PROBES: transfer_fields.jagged(vectors)})

    def put_answer_starts(self, starts: Sequence[int]) -> None:
        """Lay down where the answer of each row begins, for the engine."""
        self._put({transfer_fields.ANSWER_START: transfer_fields.pack_starts(starts)})

    def _put(self, fields: dict[str, torch.Tensor]) -> None:
        rows = TensorDict(fields, batch_size=len(self.keys))
        tq.kv_batch_put(keys=self.keys, partition_id=self.partition_id, fields=rows)

    def _get(self, fields: list[str]) -> TensorDict:
        return tq.kv_batch_get(keys=self.keys, partition_id=self.partition_id, select_fields=fields)


def open_rows(batch: Any, rows: Sequence[int], *, reference_column: str = "references") -> BatchSource:
    """These rows of verl's batch (``KVBatchMeta``)."""
    return BatchSource([batch.keys[row] for row in rows], batch.partition_id, reference_column)


def column_entries(column: Any) -> list[Any] | None:
    """A column of the data set without verl's wrappers; None where there is no such column."""
    # arrays have a field `data` of their own
    return None if column is None else [e.data if isinstance(e, NonTensorData) else e for e in column]


def said_at_all(column: list[Any] | None) -> list[Any] | None:
    """The column; None where no row has anything in it."""
    return column if column and any(entry is not None for entry in column) else None


def entries_of(column: Any, key: str) -> list[Any] | None:
    """One key of a column of mappings, None where a row lacks it."""
    found = column_entries(column)
    return None if found is None else [e.get(key) if isinstance(e, dict) else None for e in found]
