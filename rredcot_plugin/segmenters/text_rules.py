"""Ends of lines, sentences and paragraphs that are known as soon as they are there.

A rule returns the tokens that may open a segment. Each stands right after the token that completes what the rule looks for,
and nothing that comes later changes it: no rule looks ahead. All take time linear in the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rredcot_plugin.segmenters.trace import NEWLINE, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARKS = np.array([ord(char) for char in ".!?"], dtype=np.uint32)
WIDE_MARKS = np.array([ord(char) for char in "。！？"], dtype=np.uint32)
CLOSERS = np.array([ord(char) for char in "\"')]’”»"], dtype=np.uint32)
BLANKS = np.array([ord(char) for char in " \t\r\n\v\f"], dtype=np.uint32)
MOST_CLOSERS = 2


def line_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that holds a line end, unless the line has neither letter nor digit.

    Such a line (a blank one, a rule, a closing fence) begins the segment of the line that follows it.
    """
    return with_substance(trace, trace.tokens_from(np.flatnonzero(trace.codes == NEWLINE) + 1))


def sentence_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that ends a line or a sentence.

    A sentence ends with a token that closes with ``.``, ``!`` or ``?`` (quotes and brackets after it included). After a
    digit the token that holds the blank behind the mark ends it, so that "3.14" is not one; an abbreviation such as
    "e.g." does not end one at its second letter. ``。``, ``！`` and ``？`` need no blank.
    """
    codes = trace.codes
    if len(codes) == 0 or trace.spans is None:
        return np.zeros(0, dtype=np.int64)
    closed, numeral = _closed(codes)
    ends = np.flatnonzero(closed[trace.spans[:, 1] - 1] & (trace.spans[:, 1] > trace.spans[:, 0])) + 1
    blank = np.isin(codes, BLANKS)
    after_numeral = np.flatnonzero(numeral[:-1] & blank[1:]) + 2
    lines = np.flatnonzero((codes == NEWLINE) | np.isin(codes, WIDE_MARKS)) + 1
    return with_substance(trace, np.union1d(ends, trace.tokens_from(np.union1d(after_numeral, lines))))


def paragraph_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that completes a blank line (spaces and tabs on it allowed)."""
    return with_substance(trace, trace.tokens_from(blank_line_ends(trace.codes)))


def blank_line_ends(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The character after each line end before which only blanks stand on its line."""
    newlines = np.flatnonzero(codes == NEWLINE)
    dark = np.concatenate([[0], np.cumsum(~np.isin(codes, BLANKS))])
    found: NDArray[np.int64] = newlines[1:][dark[newlines[1:]] == dark[newlines[:-1]]] + 1
    return found


def _closed(codes: NDArray[np.uint32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each character whether a sentence is closed with it; and whether only a blank would make it so (digits)."""
    before = np.concatenate([[NEWLINE], codes[:-1]]).astype(np.uint32)
    two_before = np.concatenate([[NEWLINE], before[:-1]]).astype(np.uint32)
    mark = np.isin(codes, MARKS)
    digit = (before >= ord("0")) & (before <= ord("9"))
    abbreviation = two_before == ord(".")
    closed = mark & ~digit & ~abbreviation & ~np.isin(before, BLANKS)
    numeral = mark & digit
    closer = np.isin(codes, CLOSERS)
    for _ in range(MOST_CLOSERS):
        closed[1:] |= closer[1:] & closed[:-1]
        numeral[1:] |= closer[1:] & numeral[:-1]
    return closed, numeral


def with_substance(trace: Trace, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts before each of which, since the one before it, there is a letter or a digit."""
    assert trace.spans is not None
    cuts = np.unique(cuts)
    cuts = cuts[(cuts > 0) & (cuts < trace.length)]
    seen = trace.substance[trace.spans[cuts - 1, 1]]
    kept: NDArray[np.int64] = cuts[np.diff(seen, prepend=0) > 0]
    return kept
