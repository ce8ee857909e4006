"""Sessions of several rows as one row each: what the method gets, and what goes back to the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch

from rredcot_plugin.adapter.data_plane import DataPlane
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.integrations.verl.batch import onto_unmasked
from rredcot_plugin.integrations.verl.sessions import RowRoles
from rredcot_plugin.probes.layout import split_packs
from rredcot_plugin.types import Rollouts


@dataclass(frozen=True)
class SessionLayout:
    """Where the outputs of each session stand in its row: one after another, ``lengths[i][j]`` columns for output j of
    session i, and one masked column between two of them, as there is where a tool answers within an output.

    ``numbers`` are those of the outputs in verl's keys.
    """

    lengths: list[list[int]]
    numbers: list[list[int]]

    @cached_property
    def is_trivial(self) -> bool:
        """Whether every session has one output; rows are then sessions as they are."""
        return all(len(own) == 1 for own in self.lengths)

    @property
    def totals(self) -> list[int]:
        """Columns of each session."""
        return [sum(own) + len(own) - 1 for own in self.lengths]

    def starts(self, session: int) -> list[int]:
        """The first column of each output."""
        return list(accumulate((length + 1 for length in self.lengths[session][:-1]), initial=0))

    def take(self, index: Sequence[int]) -> SessionLayout:
        """Some of the sessions."""
        return SessionLayout([self.lengths[i] for i in index], [self.numbers[i] for i in index])

    def join(self, rows: torch.Tensor) -> torch.Tensor:
        """(sessions, columns) from the rows of all outputs (rows, T), one session after another; 0 between outputs."""
        if self.is_trivial:
            return rows
        joined = rows.new_zeros(len(self.lengths), max([1, *self.totals]))
        for session, row, columns in self._places():
            joined[session, columns] = rows[row, : columns.stop - columns.start]
        return joined

    def split(self, joined: torch.Tensor, width: int) -> torch.Tensor:
        """(rows, ``width``): the columns of each output, one session after another; 0 where a row has no more tokens."""
        rows = joined.new_zeros(sum(map(len, self.lengths)), width)
        for session, row, columns in self._places():
            own = joined[session, columns][:width]
            rows[row, : len(own)] = own
        return rows

    def is_last(self, width: int) -> torch.Tensor:
        """(sessions, ``width``): whether a column belongs to the last output."""
        firsts = torch.tensor([self.starts(session)[-1] for session in range(len(self.lengths))])
        return torch.arange(width) >= firsts[:, None]

    def _places(self) -> list[tuple[int, int, slice]]:
        """(session, row, its columns) of every output."""
        found: list[tuple[int, int, slice]] = []
        for session, own in enumerate(self.lengths):
            for start, length in zip(self.starts(session), own, strict=True):
                found.append((session, len(found), slice(start, start + length)))
        return found


@dataclass(frozen=True)
class SessionPlane:
    """The rows of ``source``, which are the outputs of sessions one after another, as one row a session (`adapter.data_plane`).

    The reward of a session is that of its last output, on its last unmasked token.
    """

    source: Any
    layout: SessionLayout

    def take(self, index: Sequence[int]) -> SessionPlane:
        places = list(accumulate(map(len, self.layout.lengths), initial=0))
        rows = chain.from_iterable(range(places[i], places[i + 1]) for i in index)
        return SessionPlane(self.source.take(list(rows)), self.layout.take(index))

    def group_ids(self) -> list[str]:
        return self._of_last(self.source.group_ids())

    def rows(self) -> PromptedRollouts:
        """The sessions; what is not a number of a token is that of the last output."""
        found, join = self.source.rows(), self.layout.join
        own: Rollouts = found.rollouts
        mask = join(own.response_mask)
        rewards = join(self.source.numbers(["rm_scores"], own.rewards.shape[1])[0])
        rewards = onto_unmasked(torch.where(self.layout.is_last(rewards.shape[1]), rewards, 0.0), mask)
        rollouts = Rollouts(
            token_ids=join(found.token_ids),
            response_mask=mask,
            rewards=rewards,
            group_ids=self._of_last(own.group_ids),
            log_probs=None if own.log_probs is None else join(own.log_probs),
            ground_truths=None if own.ground_truths is None else self._of_last(own.ground_truths),
            references=None if own.references is None else self._of_last(own.references),
        )
        prompts, outputs = iter(found.prompts), []
        for session, lengths in enumerate(self.layout.lengths):
            places = zip(self.layout.starts(session), lengths, self.layout.numbers[session], strict=True)
            outputs.append([Output(next(prompts), *place) for place in places])
        first = [session[0].prompt for session in outputs]
        told = None if found.told is None else self._of_last(found.told)
        return PromptedRollouts(rollouts, first, [""] * len(first), self.layout.totals, outputs, told)

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        found = self.source.signals(self._widest)
        return {name: self.layout.join(signal)[:, :width] for name, signal in found.items()}

    def numbers(self, fields: Sequence[str], width: int) -> list[torch.Tensor]:
        return [self.layout.join(found)[:, :width] for found in self.source.numbers(fields, self._widest)]

    def turn_values(self, width: int) -> torch.Tensor:
        return self.layout.join(self.source.turn_values(self._widest))[:, :width]

    def answers(self) -> list[torch.Tensor]:
        """Seconds of all outputs of a session together, then the log-probs of their probes in their order."""
        parts = self._by_session(self.source.answers())
        return [torch.cat([sum(row[:1] for row in own), *(row[1:] for row in own)]) for own in parts]

    def reward_fields(self) -> list[dict[str, Any]]:
        return self._of_last(self.source.reward_fields())

    def put_probes(self, vectors: Sequence[torch.Tensor]) -> None:
        self.source.put_probes([pack for vector in vectors for pack in split_packs(vector)])

    def put_answer_starts(self, starts: Sequence[int]) -> None:
        """Of every output."""
        self.source.put_answer_starts(starts)

    @property
    def _widest(self) -> int:
        """Columns of the widest output."""
        return max([1, *chain.from_iterable(self.layout.lengths)])

    def _of_last(self, rows: Sequence[Any]) -> list[Any]:
        return [own[-1] for own in self._by_session(rows)]

    def _by_session(self, rows: Sequence[Any]) -> list[list[Any]]:
        left = iter(rows)
        return [[next(left) for _ in own] for own in self.layout.lengths]


def as_sessions(source: DataPlane, layout: SessionLayout) -> DataPlane:
    """The sessions that these rows are; the rows themselves where every session has one."""
    return source if layout.is_trivial else SessionPlane(source, layout)


def layout_of(batch: Any, roles: RowRoles) -> SessionLayout:
    """That of verl's batch, by its tags."""
    lengths = [[int(batch.tags[row]["response_len"]) for row in own] for own in roles.sessions]
    return SessionLayout(lengths, roles.numbers)
