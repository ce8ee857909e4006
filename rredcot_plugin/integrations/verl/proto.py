"""The second data plane: the rows of a ``DataProto``, which verl's trainer with ``trainer.use_v1=false`` keeps in its driver.

``ProtoBatch`` stands where the runner expects verl's ``KVBatchMeta``, and ``ProbingGroup`` in front of the actor's workers for
one log-prob pass: it gives them the probes with the batch, and takes what comes back beside verl's own numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from verl.utils import tensordict_utils as tu

from rredcot_plugin.adapter.process_rewards import FIELD as PROCESS_REWARDS
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import media, transfer_fields
from rredcot_plugin.integrations.verl.batch import REWARD_FIELDS, entries_of, onto_unmasked, said_at_all
from rredcot_plugin.types import Rollouts

SIGNALS = {"old_log_probs": "log_probs", "entropys": "entropies"}
"""What verl's log-prob pass returns, and the fields of ``Rollouts`` that it becomes."""


@dataclasses.dataclass
class ProtoBatch:
    """A step's ``DataProto``; ``keys`` and ``tags`` name its rows as TransferQueue would, one session each."""

    proto: Any
    keys: list[str]
    tags: list[dict[str, Any]]
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    probes: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    answers: list[torch.Tensor] = dataclasses.field(default_factory=list)
    signals: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    """(rows, T) in the order of the rows, by the names of ``SIGNALS``."""

    @classmethod
    def of(cls, proto: Any) -> ProtoBatch:
        lengths = response_lengths(proto).tolist()
        uids = proto.non_tensor_batch["uid"]
        keys = [f"{uid}_{row}_0" for row, uid in enumerate(uids)]
        return cls(proto, keys, [{"response_len": length} for length in lengths])


def response_lengths(proto: Any) -> torch.Tensor:
    """(rows,): tokens of each response, masked ones included."""
    lengths: torch.Tensor = proto.batch["attention_mask"][:, proto.batch["prompts"].shape[1] :].sum(dim=1)
    return lengths


@dataclasses.dataclass(frozen=True)
class ProtoSource:
    """Some rows of a ``ProtoBatch`` (`adapter.data_plane.DataPlane`)."""

    batch: ProtoBatch
    index: list[int]
    reference_column: str = "references"

    def take(self, index: Sequence[int]) -> ProtoSource:
        return dataclasses.replace(self, index=[self.index[i] for i in index])

    def group_ids(self) -> list[str]:
        return [str(uid) for uid in self._column("uid") or []]

    def rows(self) -> PromptedRollouts:
        """The rows, without texts; ``log_probs`` are the rollout engine's, where it recorded them."""
        batch = self.batch.proto.batch
        lengths = response_lengths(self.batch.proto)[self.index].tolist()
        width = max([1, *lengths])
        mask = self._numbers("response_mask", width).bool()
        recorded = "rollout_log_probs" in batch
        prompts, attention = batch["prompts"], batch["attention_mask"].bool()
        rollouts = Rollouts(
            token_ids=self._numbers("responses", width),
            response_mask=mask,
            rewards=onto_unmasked(self._numbers("rm_scores", width).float(), mask),
            group_ids=self.group_ids(),
            log_probs=finite(self._numbers("rollout_log_probs", width)) if recorded else None,
            ground_truths=self._entries("reward_model", "ground_truth"),
            references=self._column(self.reference_column) or self._entries("extra_info", self.reference_column),
        )
        own = [prompts[row][attention[row, : prompts.shape[1]]].cpu() for row in self.index]
        told = said_at_all(self._column(PROCESS_REWARDS))
        return PromptedRollouts(rollouts, own, [""] * len(lengths), lengths, told=told)

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        found = self.batch.signals
        return {
            name: finite(_fitted(found[field][self.index], width))
            for field, name in SIGNALS.items()
            if field in found
        }

    def numbers(self, fields: Sequence[str], width: int) -> list[torch.Tensor]:
        return [self._numbers(field, width).float() for field in fields]

    def turn_values(self, width: int) -> torch.Tensor:
        """Refused here (`start.check_legacy`)."""
        raise NotImplementedError("value_estimator=environment needs trainer.use_v1=true")

    def has_media(self) -> bool:
        """Whether a row has images, video or sound."""
        return any(self._column(media.FIELD) or [])

    def answers(self) -> list[torch.Tensor]:
        return [self.batch.answers[row] for row in self.index]

    def reward_fields(self) -> list[dict[str, Any]]:
        columns = {name: self._column(name) for name in REWARD_FIELDS}
        known = {name: column for name, column in columns.items() if column is not None}
        return [{name: column[i] for name, column in known.items()} for i in range(len(self.index))]

    def put_probes(self, vectors: Sequence[torch.Tensor]) -> None:
        self.batch.probes.update(zip(self.index, vectors, strict=True))

    def put_answer_starts(self, starts: Sequence[int]) -> None:
        """Attribution is refused here (`start.check_legacy`)."""
        raise NotImplementedError("attribution needs trainer.use_v1=true")

    def _numbers(self, field: str, width: int) -> torch.Tensor:
        return _fitted(self.batch.proto.batch[field][self.index], width)

    def _column(self, name: str) -> list[Any] | None:
        column = self.batch.proto.non_tensor_batch.get(name)
        return None if column is None else [column[row] for row in self.index]

    def _entries(self, name: str, key: str) -> list[Any] | None:
        return entries_of(self._column(name), key)


def open_proto(batch: ProtoBatch, rows: Sequence[int], *, reference_column: str = "references") -> ProtoSource:
    """These rows of a batch."""
    return ProtoSource(batch, list(rows), reference_column)


def finite(x: torch.Tensor) -> torch.Tensor:
    return x.float().nan_to_num(0.0, 0.0, 0.0)


def _fitted(table: torch.Tensor, width: int) -> torch.Tensor:
    """(rows, width) on the CPU: the first columns, filled up with 0."""
    columns = table[:, :width].cpu()
    return torch.nn.functional.pad(columns, (0, width - columns.shape[1]))


class ProbingGroup:
    """The actor's worker group for one log-prob pass of ``batch``; everything else of it is passed on."""

    def __init__(self, group: Any, batch: ProtoBatch) -> None:
        self._group, self._batch = group, batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def compute_log_prob(self, data: Any) -> Any:
        """verl's call, with the probes of every row in ``data`` where they were asked for.

        Raises:
            ValueError: the engine answers none of them, as with a model whose attention cannot be forked.
        """
        backend = self._batch.extra_info.get(transfer_fields.BACKEND)
        if backend is None:
            return self._group.compute_log_prob(data)
        vectors = [self._batch.probes[row] for row in range(len(self._batch.keys))]
        data[transfer_fields.PROBES] = transfer_fields.jagged(vectors)
        tu.assign_non_tensor(data, **{transfer_fields.BACKEND: backend})
        output = self._group.compute_log_prob(data)
        answers = tu.get(output, transfer_fields.LOG_PROBS)
        self._batch.answers = found = [row.cpu() for row in answers.unbind()]
        asked = torch.cat([row[1:] for row in found])
        if len(asked) and asked.isnan().all():
            raise ValueError(
                "trainer.use_v1=false: the engine cannot run probes in the log-prob pass of this model; set trainer.use_v1=true, "
                "where they run as rows of their own, or algorithm.rredcot.value_estimator=confidence"
            )
        return output
