"""Ends of lines, sentences and paragraphs that are known as soon as they are there.

A rule returns the tokens that may open a segment. Each stands right after the token that completes what the rule looks for,
and nothing that comes later changes it: no rule looks ahead. All take time linear in the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rredcot_plugin.segmenters.characters import BLANK, CLOSER, DIGIT, MARK, NEWLINE, WIDE_MARK
from rredcot_plugin.segmenters.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CLOSERS = 2


def line_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that holds a line end, unless the line has neither letter nor digit.

    Such a line (a blank one, a rule, a closing fence) begins the segment of the line that follows it.
    """
    return with_substance(trace, trace.tokens_from(np.flatnonzero(trace.kinds & NEWLINE != 0) + 1))


def sentence_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that ends a line or a sentence.

    A sentence ends with a token that closes with ``.``, ``!`` or ``?`` (quotes and brackets after it included). After a
    digit the token that holds the blank after the mark ends it, so that "3.14" is not one; the number of a list ("2." at the
    start of a line) ends none, and neither does an abbreviation such as "e.g." at its second letter. ``。``, ``！`` and ``？`` need no blank.
    """
    kinds = trace.kinds
    if len(kinds) == 0 or trace.spans is None:
        return np.zeros(0, dtype=np.int64)
    closed, numeral = _closed(kinds)
    ends = np.flatnonzero(closed[trace.ends - 1] & (trace.ends > trace.starts)) + 1
    complete = kinds & (NEWLINE | WIDE_MARK) != 0
    after_numeral = numeral[numeral + 1 < len(kinds)]
    after_numeral = after_numeral[kinds[after_numeral + 1] & BLANK > 0]
    complete[after_numeral[~_numbers_a_line(kinds, after_numeral)] + 1] = True
    found = np.zeros(trace.length + 1, dtype=bool)  # marks need no sorting
    found[ends] = True
    found[trace.tokens_from(np.flatnonzero(complete) + 1)] = True
    return with_substance(trace, np.flatnonzero(found))


def paragraph_ends(trace: Trace) -> NDArray[np.int64]:
    """After the token that completes a blank line (spaces and tabs on it allowed)."""
    return with_substance(trace, trace.tokens_from(blank_line_ends(trace.kinds)))


def blank_line_ends(kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The character after each line end before which only blanks stand on its line."""
    newlines = np.flatnonzero(kinds & NEWLINE != 0)
    dark = np.concatenate([[0], np.cumsum(kinds & BLANK == 0)])
    found: NDArray[np.int64] = newlines[1:][dark[newlines[1:]] == dark[newlines[:-1]]] + 1
    return found


def _numbers_a_line(kinds: NDArray[np.uint8], marks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether nothing but digits and blanks stands on the line before each mark."""
    if len(marks) == 0:
        return np.zeros(0, dtype=bool)
    line_starts = np.concatenate([[0], np.flatnonzero(kinds & NEWLINE != 0) + 1])
    lines, line_of_mark = np.unique(np.searchsorted(line_starts, marks, side="right") - 1, return_inverse=True)
    other = (kinds & (DIGIT | BLANK) == 0).tobytes()
    first_other = np.array([other.find(1, start) for start in line_starts[lines].tolist()])  # the mark is one
    numbers: NDArray[np.bool_] = first_other[line_of_mark] >= marks
    return numbers


def _closed(kinds: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """For each character whether a sentence is closed with it; and the characters after which only a blank would close
    one (digits)."""
    padded = np.concatenate([np.full(2, BLANK, dtype=np.uint8), kinds, np.zeros(1, dtype=np.uint8)])
    marks = np.flatnonzero(kinds & MARK != 0)
    before, two_before = padded[marks + 1], padded[marks]
    ends = marks[(before & (DIGIT | BLANK) == 0) & (two_before & MARK == 0)]
    numeral = marks[before & DIGIT > 0]
    closed = np.zeros(len(kinds), dtype=bool)
    closed[ends] = True
    numerals = [numeral]
    for _ in range(MOST_CLOSERS):
        ends, numeral = (at[padded[at + 3] & CLOSER > 0] + 1 for at in (ends, numeral))
        closed[ends] = True
        numerals.append(numeral)
    return closed, np.concatenate(numerals)


def distinct(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted and distinct; as they are where they are so already, which they mostly are."""
    return cuts if bool((np.diff(cuts) > 0).all()) else np.unique(cuts)


def with_substance(trace: Trace, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts before each of which, since the one before it, there is a letter or a digit."""
    cuts = distinct(cuts)
    cuts = cuts[(cuts > 0) & (cuts < trace.length)]
    kept: NDArray[np.int64] = cuts[trace.has_words(trace.ends[cuts - 1])]
    return kept
