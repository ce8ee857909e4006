"""``code``: blocks of a program inside fences, sentences outside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.text_rules import sentence_ends, with_substance
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.text.answers import MARKERS

FENCE = re.compile(r"[ \t]*```")
DARK = re.compile(r"[^ \t\r\n]")
DEFINITION = re.compile(r"(?:async[ \t]+def|def|class|function|fn|func|struct|interface|impl)\b")


@register_segmenter("code")
@dataclass(frozen=True)
class CodeSegmenter(CutSegmenter):
    """Inside fences a segment ends with a line: with a fence, the head of a definition, a blank line, and every line that is
    indented no deeper than the block's outermost line so far; outside, with every sentence.

    A boundary in front of a definition would depend on whether the model is going to write it, so the head of a
    definition belongs to the segment before its body. A fence counts as code even if it is the last one, so ``code``
    is not among its ``answer_markers``.
    """

    answer_markers: Sequence[str] = tuple(name for name in MARKERS if name != "code")

    def propose(self, trace: Trace) -> np.ndarray:
        assert trace.text is not None and trace.spans is not None
        ends, code_from, code_to = _code_lines(trace.text)
        prose = sentence_ends(trace)
        chars = trace.spans[prose - 1, 1]
        block = np.searchsorted(code_from, chars, side="left") - 1
        inside = (block >= 0) & (chars <= np.append(code_to, 0)[block])
        return with_substance(trace, np.union1d(trace.tokens_from(ends), prose[~inside]))


def _code_lines(text: str) -> tuple[list[int], list[int], list[int]]:
    """The characters after the lines that end a segment; the blocks, each from its opening fence to the end of its
    closing one."""
    ends: list[int] = []
    code_from: list[int] = []
    code_to: list[int] = []
    base: int | None = None
    for start, stop, is_complete in _lines(text):
        fence = FENCE.match(text, start, stop)
        is_open = len(code_from) > len(code_to)
        if fence and not is_open:
            code_from.append(fence.end() - 1)
            base = None
        elif fence:
            code_to.append(stop)
        if not is_complete or not (fence or is_open):
            continue
        dark = DARK.search(text, start, stop)
        indent = dark.start() - start if dark else 0
        if dark and not fence:
            base = indent if base is None else min(base, indent)
        if fence or dark is None or indent == base or DEFINITION.match(text, dark.start(), stop):
            ends.append(stop)
    code_to += [len(text)] * (len(code_from) - len(code_to))
    return ends, code_from, code_to


def _lines(text: str) -> Iterator[tuple[int, int, bool]]:
    """(start, end with the line end, whether it has one) of every line."""
    start = 0
    while start < len(text):
        found = text.find("\n", start)
        stop = found + 1 if found >= 0 else len(text)
        yield start, stop, found >= 0
        start = stop
