"""Which rows of a verl batch belong together. An agent loop may write several rows for one session; padding is added too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any

import torch


@dataclass(frozen=True)
class RowRoles:
    """``sessions[i]``: the row numbers of a session's outputs, in order of their ``numbers`` in verl's keys; ``names[i]`` is
    what these keys begin with, and ``rows`` the number of rows of the batch. Rows of no session are padding.

    A session counts once, in every statistic, and its outcome is the reward of its last output: verl writes a copy of it on
    the earlier ones. An output that is missing is a gap in ``numbers``: the session consists of those that are there.
    """

    sessions: list[list[int]]
    numbers: list[list[int]]
    names: list[str]
    rows: int

    @cached_property
    def active(self) -> list[int]:
        """The rows of all sessions, one session after another."""
        return list(chain.from_iterable(self.sessions))

    @cached_property
    def padding(self) -> list[int]:
        """The rows of none."""
        return sorted(set(range(self.rows)) - set(self.active))

    @property
    def metrics(self) -> dict[str, float]:
        """Rows a session, and the share of sessions of which an output is missing."""
        count = max(1, len(self.sessions))
        gaps = sum(own != list(range(len(own))) for own in self.numbers)
        return {
            "rredcot/sessions/rows/mean": len(self.active) / count,
            "rredcot/fallback/missing_row/mean": gaps / count,
        }

    def versions(self, tags: Sequence[dict[str, Any]]) -> torch.Tensor:
        """(sessions,): the version of the weights that wrote the last token of each; NaN where no tag of its rows tells it.

        A trace that was interrupted by an update goes on under newer weights (``min_global_steps`` to ``max_global_steps``).
        What calibration learns from a state is what came after it, in which the last version always has a part.
        """
        told = [
            [
                float(tags[row]["max_global_steps"])
                for row in own
                if isinstance(tags[row].get("max_global_steps"), Integral)
            ]
            for own in self.sessions
        ]
        return torch.tensor([max(own, default=torch.nan) for own in told], dtype=torch.float64)


def row_roles(keys: Sequence[str], tags: Sequence[dict[str, Any]]) -> RowRoles:
    """Roles from verl's keys ``{uid}_{session}_{index}`` and the ``is_padding`` tag, whatever the order of the rows.

    >>> row_roles(["a_0_1", "a_0_0", "a_1_2", "pad_0_0"], [{}, {}, {}, {"is_padding": True}])
    RowRoles(sessions=[[1, 0], [2]], numbers=[[0, 1], [2]], names=['a_0', 'a_1'], rows=4)
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        if tag.get("is_padding", False):
            continue
        session, _, index = key.rpartition("_")
        known = index.isdigit() and session
        found.setdefault(session if known else key, []).append((int(index) if known else 0, row))
    by_last = sorted(((sorted(outputs), name) for name, outputs in found.items()), key=lambda own: own[0][-1][1])
    sessions = [[row for _, row in outputs] for outputs, _ in by_last]
    numbers = [[number for number, _ in outputs] for outputs, _ in by_last]
    return RowRoles(sessions, numbers, [name for _, name in by_last], len(keys))
