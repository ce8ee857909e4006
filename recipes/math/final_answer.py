r"""Where the final answer of a response stands: the last `\boxed{}`, else what follows `####`, else "The answer is"."""

from __future__ import annotations

import re

MAX_ANSWER_CHARS = 300
"""Longer text is not a final answer."""

THINK_START, THINK_END = "<think>", "</think>"
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)[ \t]*([+-]?[0-9]++(?:[.,][0-9]++)*+)(?![a-zA-Z])"
    r"(?![ \t]*(?:[-+/^=!%{(]|\*(?!\*)|\\(?![)\]])))"
)
r"""`\boxed 5`: a number, and not the beginning of something longer."""
_PHRASE = re.compile(r"[Tt]he (?:final )?answer is:?")
_PHRASE_END = re.compile(r"\.(?:[\s*]|$)|\n|<\|")
_DISPLAY = re.compile(r"(?<!\\)\\\[(.*?)\\\]|\$\$(.*?)\$\$", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![\w)}*])(\*\*?|__|`)(?![\s*])(.+?)(?<!\s)\1(?![\w({*])")
_JOINER = re.compile(r"[\s$.,;:/|&*()]*(?:or|and|\\text\{\s*(?:or|and)\s*\}|\\lor|\\cup)?[\s$.,;:/|&*()]*")
_MAX_JOINER_CHARS = 40
_MAX_JOINED = 16


def extract_answer(text: str) -> str | None:
    r"""The final answer of a response, or None: no marker, nothing after it, too long, or still thinking.

    Different boxes that are joined ("\boxed{4} or \boxed{5}") are one answer, "4, 5".

    >>> extract_answer(r"<think>\boxed{3}? no</think> It is $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    >>> extract_answer("2 + 2 = 4\n#### 4")
    '4'
    >>> extract_answer(r"<think> is it \boxed{3}") is None
    True
    """
    _, end, tail = text.rpartition(THINK_END)
    if not end and THINK_START in text:
        return None
    answer = _last_boxes(_BARE_BOX.sub(r"\\boxed{\1}", tail))
    if answer is None:
        answer = _after_marker(tail)
    answer = answer.strip() if answer else ""
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None


def _last_boxes(text: str) -> str | None:
    """Content of the last box and of those joined to it; None without a box, "" if the last is not closed."""
    starts = list(_BOXED.finditer(text))
    if not starts:
        return None
    contents: list[str] = []
    begin_of_next: int | None = None
    for found in reversed(starts[-_MAX_JOINED:]):
        content = _braced(text, found.end())
        if begin_of_next is None:
            if content is None:
                return ""
        elif content is None or not _joins(text[found.end() + len(content) + 1 : begin_of_next]):
            break
        if content not in contents:
            contents.append(content)
        begin_of_next = found.start()
    return ", ".join(reversed(contents))


def _joins(between: str) -> bool:
    r"""True if this text between two boxes makes one answer of them.

    >>> _joins("$ or $"), _joins(". So the other root is ")
    (True, False)
    """
    return len(between) <= _MAX_JOINER_CHARS and _JOINER.fullmatch(between) is not None


def _braced(text: str, start: int) -> str | None:
    """Text up to the brace that closes the one opened before `start`; None if that is too far away."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_ANSWER_CHARS + 1)):
        character = text[position]
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:position]
    return None


def _after_marker(text: str) -> str | None:
    r"""The line after the last `####`, else the sentence after the last "The answer is"; else None.

    >>> _after_marker("**The answer is:** `5`."), _after_marker("The answer is:\n\\[\n5\n\\]")
    ('5', '$5$')
    """
    _, marker, tail = text.rpartition("####")
    if marker:
        return next(iter(_without_markdown(tail.strip()[: 2 * MAX_ANSWER_CHARS]).splitlines()), None)
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    start = phrases[-1].end()
    tail = _without_markdown(text[start : start + 2 * MAX_ANSWER_CHARS].strip())
    end = _PHRASE_END.search(tail)
    return _without_markdown(tail[: end.start()] if end else tail)


def _without_markdown(text: str) -> str:
    """The text without marks of emphasis, unpaired ones at its ends included, and displayed formulas on one line."""
    inline = _DISPLAY.sub(lambda found: f"${' '.join((found[1] or found[2] or '').split())}$", text)
    return _EMPHASIS.sub(r"\2", inline).strip("*_` \n")
