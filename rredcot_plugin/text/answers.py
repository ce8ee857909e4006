"""Where a response stops reasoning, what it answers, and how to ask for an answer earlier.

An ``AnswerFormat`` knows the marker that opens a final answer, and from it the *bridge* (the text that,
put after a truncated trace, makes the model answer now) and the *terminator* (the text that closes an
answer, so that distinct answers are disjoint events: "4" is not a prefix of "42").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

THINK_END = "</think>"
BRACE = re.compile(r"[{}]")
OPENING_FENCE = re.compile(r"```[a-zA-Z0-9_+-]*[ \t\r]*(?:\{[^`\n]*\}[ \t\r]*)?\n")
"""With a language or none, attributes in braces or none; lines may end with CRLF."""


@dataclass(frozen=True)
class AnswerFormat:
    """One way to write a final answer.

    ``marker`` finds the opening; ``closing`` the end of the answer after it (end of text where absent). Where
    opening and closing look alike (``paired``), they take turns from the start of the text.
    """

    name: str
    marker: re.Pattern[str]
    closing: re.Pattern[str]
    bridge: str
    terminator: str
    ends: bool = False
    """Whether the tokenizer's end-of-sequence token follows the terminator: "3." begins "3.5." as well."""
    paired: bool = False

    def start(self, text: str) -> int | None:
        """Character at which the last marker begins, or None."""
        last = self._last(text)
        return last.start() if last else None

    def _last(self, text: str) -> re.Match[str] | None:
        last, position = None, 0
        while (found := self.marker.search(text, position)) is not None:
            last, position = found, found.end()
            if self.paired and (closing := self.closing.search(text, position)) is not None:
                position = closing.end()
        return last

    def extract(self, text: str) -> str | None:
        """The text of the last answer, stripped; None where there is none, or an empty one."""
        last = self._last(text)
        if last is None:
            return None
        start, stop = last.end(), len(text)
        if self.name == "boxed":
            end = closing_brace(text, start, stop)
        else:
            closing = self.closing.search(text, start)
            end = closing.start() if closing else None
        return text[start : stop if end is None else end].strip() or None


def closing_brace(text: str, start: int, stop: int) -> int | None:
    """Where in ``text[start:stop]`` the brace closes that was opened just before."""
    depth = 1
    for found in BRACE.finditer(text, start, stop):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.start()
    return None


FORMATS: dict[str, AnswerFormat] = {
    f.name: f
    for f in (
        AnswerFormat("boxed", re.compile(r"\\boxed\{"), re.compile(r"\}"), "\n\n**Final Answer**\n\\boxed{", "}"),
        AnswerFormat("hash", re.compile(r"####"), re.compile(r"\n|<\|"), "\n#### ", "", ends=True),
        AnswerFormat(
            "phrase",
            re.compile(r"[Tt]he (?:final )?answer is:?"),
            re.compile(r"\.(?:\s|$)|\n|<\|"),
            "\nThe answer is ",
            ".",
            ends=True,
        ),
        AnswerFormat(
            "code",
            re.compile(OPENING_FENCE.pattern + r"(?=[^\n])"),
            re.compile(r"```"),
            "\n```python\n",
            "\n```",
            paired=True,
        ),
    )
}
"""In order of precedence: where a text has several markers, the first of these that occurs counts."""


THINK = "think"
MARKERS = (THINK, *FORMATS)
"""Everything that can end the reasoning, in order of precedence."""


def answer_start(text: str, markers: Sequence[str] = MARKERS) -> int | None:
    """Character at which the final answer begins: after ``</think>``, else at the last answer marker.

    ``markers`` are the ones that count, by name.

    >>> answer_start("2 + 2 = 4\\n#### 4")
    10
    >>> answer_start("2 + 2 = 4\\n#### 4", markers=("think", "boxed")) is None
    True
    """
    think = text.rfind(THINK_END) if THINK in markers else -1
    if think >= 0:
        return think + len(THINK_END)
    for name, answer_format in FORMATS.items():
        start = answer_format.start(text) if name in markers else None
        if start is not None:
            return start
    return None


def format_votes(texts: Sequence[str]) -> Counter[str]:
    """How many of the texts use each format.

    What a text says before it closes ``</think>`` does not count: thoughts mention answers in any form.
    """
    votes: Counter[str] = Counter()
    for text in (text.rpartition(THINK_END)[2] for text in texts):
        for name, answer_format in FORMATS.items():
            if answer_format.extract(text) is not None:
                votes[name] += 1
                break
    return votes


def most_voted(votes: Counter[str]) -> AnswerFormat | None:
    """The format that most texts use; ties go to the order of ``FORMATS``; None if none is used."""
    return max(FORMATS.values(), key=lambda known: votes[known.name]) if votes.total() else None
