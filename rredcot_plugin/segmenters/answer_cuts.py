"""Where a final answer begins and ends, as known while it is written: nobody knows yet whether it is the last one."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rredcot_plugin.answers import THINK_END, closing_brace
from rredcot_plugin.segmenters.limits import Preferred
from rredcot_plugin.segmenters.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPENINGS = {
    "think": re.escape(THINK_END),
    "boxed": r"\\boxed\{",
    "hash": r"####",
    "phrase": r"[Tt]he (?:final )?answer is",
    "code": r"(?:^|(?<=\n))[ \t]*```[a-zA-Z0-9_+-]*[ \t]*\n",
}
"""What opens an answer. None looks ahead, and of none is a beginning an opening too: a match ends where it is complete."""

CLOSING_FENCE = re.compile(r"\n[ \t]*```")


@dataclass(frozen=True)
class Answers:
    """``openings``: the token after each opening, for a cut. ``open_from``, ``open_to``: the half-open stretches of tokens
    inside an answer, in which no other segment begins."""

    openings: Preferred
    open_from: NDArray[np.int64]
    open_to: NDArray[np.int64]

    def outside(self, cuts: NDArray[np.int64], *, with_openings: bool = False) -> NDArray[np.int64]:
        """Those of ``cuts`` that do not lie inside an answer; a cut at its first token counts as inside unless
        ``with_openings``."""
        if len(self.open_from) == 0 or len(cuts) == 0:
            return cuts
        within = np.searchsorted(self.open_from, cuts, side="left" if with_openings else "right") - 1
        inside = (within >= 0) & (cuts < self.open_to[within.clip(min=0)])
        kept: NDArray[np.int64] = cuts[~inside]
        return kept


def find_answers(trace: Trace, markers: Sequence[str]) -> Answers:
    """The answers that ``markers`` open, by name.

    A segment begins after the token that completes an opening. There is no need for it where neither a letter nor a
    digit stands between the last cut and the opening: then that cut begins the answer already ("#### 4" on a line
    of its own), or nothing comes before the answer. ``</think>`` opens an answer that lasts to the end of the turn; ``####`` and
    "the answer is" one to the end of the line; ``\\boxed{`` one to its closing brace, or the end of the line; a
    fence one to the closing fence.
    """
    nothing = np.zeros(0, dtype=np.int64)
    if not trace.text or not markers or trace.spans is None:
        return Answers(Preferred.none(), nothing, nothing)
    turns = trace.spans[np.flatnonzero(np.diff(trace.columns) > 1), 1].tolist()
    begins, opened, closed = _answers(trace.text, tuple(markers), turns)
    if not begins:
        return Answers(Preferred.none(), nothing, nothing)
    first = trace.tokens_from(opened)
    at_begin, at_ends = trace.substance[begins], trace.substance[trace.spans[:, 1]]
    needless = np.where(at_begin > 0, np.searchsorted(at_ends, at_begin) + 1, 0)
    distinct, kept = np.unique(first, return_index=True)
    return Answers(Preferred(distinct, needless[kept]), first, trace.tokens_from(closed))


def _answers(text: str, markers: tuple[str, ...], turns: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Characters at which each opening begins and ends, and at which its answer ends; one answer after the other.

    ``turns`` are the characters at which a turn ends: no answer reaches into the next one.
    """
    pattern = _opening(markers)
    begins, opened, closed = [], [], []
    at = 0
    while (found := pattern.search(text, at)) is not None:
        name, body = str(found.lastgroup), found.end()
        at = _end_of_answer(text, name, body)
        turn = bisect_left(turns, body)
        at = min(at, turns[turn]) if turn < len(turns) else at
        begins.append(found.start())
        opened.append(body)
        closed.append(at)
    return begins, opened, closed


def _end_of_answer(text: str, name: str, body: int) -> int:
    """Where the answer that begins at ``body`` ends."""
    if name == "think":
        return len(text) + 1
    if name == "code":
        # the fence may close on the first line already
        fence = CLOSING_FENCE.search(text, body - 1)
        return fence.end() if fence else len(text) + 1
    line = text.find("\n", body)
    end = line + 1 if line >= 0 else len(text) + 1
    brace = closing_brace(text, body, end) if name == "boxed" else None
    return end if brace is None else brace + 1


@lru_cache(maxsize=8)
def _opening(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{OPENINGS[name]})" for name in OPENINGS if name in markers))
