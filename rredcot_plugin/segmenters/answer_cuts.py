"""Where a final answer begins and ends, as known while it is written: nobody knows yet whether it is the last one."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rredcot_plugin.segmenters.limits import Preferred
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.text.answers import OPENING_FENCE, THINK_END, closing_brace

if TYPE_CHECKING:
    from numpy.typing import NDArray

LITERALS = {"think": THINK_END, "boxed": "\\boxed{", "hash": "####", "phrase": "answer is", "code": "```"}
"""What each opening contains. None looks ahead, and of none is a beginning an opening too: it ends where it is complete."""

BEFORE_PHRASE = ("The final ", "the final ", "The ", "the ")
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
    turns = trace.ends[trace.last_of_turns].tolist()
    all_written = not turns and trace.length > 0 and trace.columns[0] == 0
    begins, opened, closed = _answers(trace.text, tuple(markers), turns, None if all_written else trace.wrote)
    if not begins:
        return Answers(Preferred.none(), nothing, nothing)
    first = trace.tokens_from(opened)
    # tokens without characters at the end of a turn stand where it ends, and are of this turn all the same
    next_turns = np.append(trace.last_of_turns + 1, trace.length)[np.searchsorted(turns, opened)]
    after = np.minimum(trace.tokens_from(closed), next_turns)
    words = np.array(trace.last_words(begins))
    needless = np.where(words >= 0, np.searchsorted(trace.ends, words + 1) + 1, 0)
    distinct, kept = np.unique(first, return_index=True)
    return Answers(Preferred(distinct, needless[kept]), first, after)


def _answers(
    text: str, markers: tuple[str, ...], turns: list[int], wrote: Callable[[int], bool] | None
) -> tuple[list[int], list[int], list[int]]:
    """Characters at which each opening begins and ends, and at which its answer ends by what is written; one answer after the
    other.

    ``turns`` are the characters at which a turn ends: what stands after them belongs to no answer of it. ``wrote`` tells
    whether a character is the model's; None where all are. What completes an opening has to be.
    """
    begins, opened, closed = [], [], []
    at = 0
    openings = (opening for name in markers for opening in _openings(text, name))
    for body, begin, kind in sorted(openings):  # as they were completed: a fence may have others in its braces
        if begin < at or (wrote is not None and not wrote(body - 1)):
            continue
        turn = bisect_left(turns, body)
        latest = turns[turn] if turn < len(turns) else len(text) + 1
        end = _end_of_answer(text, kind, body, latest)
        at = min(end, latest)
        begins.append(begin)
        opened.append(body)
        closed.append(end)
    return begins, opened, closed


def _openings(text: str, name: str) -> Iterator[tuple[int, int, str]]:
    """(end, begin, name) of everything that looks like an opening of that name."""
    literal, before = LITERALS[name], 0
    found = text.find(literal)
    while found >= 0:
        begin, end = found, found + len(literal)
        if name == "phrase":
            article = next((a for a in BEFORE_PHRASE if text.endswith(a, 0, begin)), "")
            begin, end = (begin - len(article), end) if article else (begin, -1)
        elif name == "code":
            newline = text.rfind("\n", before, begin)
            opens_line = (newline >= 0 or before == 0) and not text[newline + 1 : begin].strip(" \t")
            fence = OPENING_FENCE.match(text, begin) if opens_line else None
            begin, end = (newline + 1, fence.end()) if fence else (begin, -1)
        if end >= 0:
            yield end, begin, name
        before = found + len(literal)
        found = text.find(literal, before)


def _end_of_answer(text: str, name: str, body: int, latest: int) -> int:
    """Where the answer that begins at ``body`` ends; past the end of the text if not before ``latest``, the end of its turn: looking
    further, from every opening of every turn, would take the square of their number."""
    if name == "think":
        return len(text) + 1
    if name == "code":
        # the fence may close on the first line already
        fence = CLOSING_FENCE.search(text, body - 1, latest)
        return fence.end() if fence else len(text) + 1
    line = text.find("\n", body, latest)
    end = line + 1 if line >= 0 else len(text) + 1
    brace = closing_brace(text, body, min(end, latest)) if name == "boxed" else None
    return end if brace is None else brace + 1
