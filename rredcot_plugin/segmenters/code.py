"""``code``: blocks of a program inside fences, sentences outside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.answers import MARKERS
from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.sentence import SENTENCE_END

FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
LINE = re.compile(r"^[^\n]*\S[^\n]*$", re.MULTILINE)
DEFINITION = re.compile(r"\s*(?:async\s+def|def|class|function|fn|func|struct|interface|impl)\b")
DECORATOR = re.compile(r"\s*@\w")


@register_segmenter("code")
@dataclass(frozen=True)
class CodeSegmenter(CutSegmenter):
    """Inside fences a segment begins at a fence, a definition (its decorators included), behind a blank line,
    and where the indentation returns to that of the block's first line; outside, at every sentence.

    A fence counts as code even if it is the last one, so ``code`` is not among its ``answer_markers``.
    """

    answer_markers: Sequence[str] = tuple(name for name in MARKERS if name != "code")

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        assert trace.text is not None
        chars = [
            char
            for start, stop, is_code in _parts(trace.text)
            for char in _starts(trace.text, start, stop, is_code)
        ]
        return cuts_at(trace.tokens_at(chars))


def _parts(text: str) -> Iterator[tuple[int, int, bool]]:
    """The text as (start, stop, is code); both fences belong to the code. An open fence ends with the text."""
    at, fences = 0, FENCE.finditer(text)
    for opening in fences:
        closing = next(fences, None)
        stop = closing.end() if closing else len(text)
        yield at, opening.start(), False
        yield opening.start(), stop, True
        at = stop
    yield at, len(text), False


def _starts(text: str, start: int, stop: int, is_code: bool) -> Iterator[int]:
    if start < stop:
        yield _skip_space(text, start, stop) if not is_code else start
        yield from _code_starts(text, start, stop) if is_code else _prose_starts(text, start, stop)


def _skip_space(text: str, start: int, stop: int) -> int:
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()) if part.strip() else start


def _prose_starts(text: str, start: int, stop: int) -> Iterator[int]:
    for found in SENTENCE_END.finditer(text, start, stop):
        yield found.end()


def _code_starts(text: str, start: int, stop: int) -> Iterator[int]:
    base: int | None = None
    end_before, was_deeper, was_decorator = start, False, False
    for line in LINE.finditer(text, start, stop):
        source = line.group()
        if FENCE.match(source):
            end_before = line.end()
            continue
        indent = len(source) - len(source.lstrip())
        base = indent if base is None else min(base, indent)
        is_behind_blank = text.count("\n", end_before, line.start()) > 1
        opens = bool(DEFINITION.match(source) or DECORATOR.match(source)) and not was_decorator
        if is_behind_blank or opens or (was_deeper and indent == base):
            yield line.start()
        end_before, was_deeper, was_decorator = line.end(), indent > base, bool(DECORATOR.match(source))
