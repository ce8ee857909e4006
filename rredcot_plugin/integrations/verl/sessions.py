"""Which rows of a verl batch count. An agent loop may write several rows for one session; padding is added too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RowRoles:
    """``active``: row numbers that take part in credit assignment, one a session (its last output).

    ``owner[row]`` is the position in ``active`` whose credit a row shares, −1 for padding.
    """

    active: list[int]
    owner: list[int]


def row_roles(keys: Sequence[str], tags: Sequence[dict[str, Any]]) -> RowRoles:
    """Roles from verl's keys ``{uid}_{session}_{index}`` and the ``is_padding`` tag.

    >>> row_roles(["a_0_0", "a_0_1", "a_1_0", "pad_0_0"], [{}, {}, {}, {"is_padding": True}])
    RowRoles(active=[1, 2], owner=[0, 0, 1, -1])
    """
    final: dict[str, tuple[int, int]] = {}
    sessions: list[str | None] = []
    for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        if tag.get("is_padding", False):
            sessions.append(None)
            continue
        session, _, index = key.rpartition("_")
        number = int(index) if index.isdigit() and session else 0
        session = session if index.isdigit() and session else key
        sessions.append(session)
        if session not in final or final[session][0] < number:
            final[session] = (number, row)
    active = sorted(row for _, row in final.values())
    position = {row: i for i, row in enumerate(active)}
    owner = [-1 if session is None else position[final[session][1]] for session in sessions]
    return RowRoles(active, owner)
