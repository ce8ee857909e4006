"""What a task family is: questions, clean solutions, rewards, and where a trace first goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from rredcot_plugin.demo.reward import extract_answer
from rredcot_plugin.demo.tasks import ANSWER_MARKER, split_of
from rredcot_plugin.tiny.reasoner import IM_END, MAX_RESPONSE_TOKENS

Data = tuple[str, ...]
Lines = Callable[[Data], list[str]]
TRIES = 200


@dataclass(frozen=True)
class Question:
    """What is asked, one right answer, and ``data``: the statements or terms that the checks read."""

    text: str
    answer: str
    data: Data


@dataclass(frozen=True)
class Habit:
    """``share`` of the minuses are read as a plus: a habit and no slip, so that sharpening it does not help.
    ``solve(data, share, rng)``: the lines and the answer that follow from it."""

    share: float
    solve: Callable[[Data, float, random.Random], tuple[list[str], str]]


def no_bait(question: Question, lines: list[str], number: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Family:
    """``problems(split, size, seed)``; ``write``: a clean solution; ``accepts``: what an answer is worth, 1 or
    True if it is right, 0 if it is wrong, and in between only if the family is ``graded``; ``right(question, lines, number)``: whether the line of that number is right after those before it; ``habit``: what
    its model was taught last; ``whole``: the response is the answer, from its first character to its last; ``by_lines``: the
    reward is what the lines before the answer's earn; ``bait(question, lines, number)``: what a wrong line earns there, 0
    without."""

    name: str
    model: str
    kind: str
    problems: Callable[[str, int, int], list[Question]]
    write: Callable[[Question, random.Random], str]
    accepts: Callable[[Question, str], float]
    right: Callable[[Question, list[str], int], bool]
    habit: Habit | None = None
    whole: bool = False
    graded: bool = False
    by_lines: bool = False
    bait: Callable[[Question, list[str], int], float] = no_bait
    max_response_tokens: int = MAX_RESPONSE_TOKENS

    def reward(self, question: Question, response: str) -> float:
        """What the answer after the last marker is worth, 0 if there is none, or the lines before it; any text will do."""
        if self.by_lines:
            return sum(self.line_rewards(question, response))
        body = response.split(IM_END)[0]
        answer = body if self.whole else extract_answer(body)
        return 0.0 if answer is None else float(self.accepts(question, answer))

    @staticmethod
    def lines(response: str) -> list[str]:
        """The lines before the answer's: the segments of ``newline``, but that what stands from the answer marker on, one
        line as well, is left out."""
        body = response.split(IM_END)[0]
        steps, marker, _ = body.rpartition(ANSWER_MARKER)
        return [line for line in (steps if marker else body).split("\n") if line]

    def line_rewards(self, question: Question, response: str) -> list[float]:
        """What each line before the answer's earns where right ones earn equal shares, 1 together: in a family whose
        solution leaves no choice."""
        lines = self.lines(response)
        due = len(self.lines(self.write(question, random.Random(0))))
        return [
            1 / due if self.right(question, lines, number) else self.bait(question, lines, number)
            for number in range(len(lines))
        ]

    def first_mistake(self, question: Question, response: str) -> int | None:
        """Number of the first line that is not right; the answer's line counts; None if all are."""
        lines = self.lines(response)
        for number in range(len(lines)):
            if not self.right(question, lines, number):
                return number
        return None if self.reward(question, response) == 1.0 else len(lines)


def solution(lines: list[str], answer: str) -> str:
    """A response of these lines."""
    return "\n".join([*lines, f"{ANSWER_MARKER} {answer}"])


def written(lines: Lines) -> Callable[[Question, random.Random], str]:
    """A clean solution that leaves no choice: these lines and the answer."""
    return lambda question, rng: solution(lines(question.data), question.answer)


def line_is(expected: Lines) -> Callable[[Question, list[str], int], bool]:
    """A line is right that is the same as that of the clean solution."""

    def right(question: Question, lines: list[str], number: int) -> bool:
        return lines[number : number + 1] == expected(question.data)[number : number + 1]

    return right


def accepts_equal(question: Question, answer: str) -> bool:
    return answer == question.answer


def stream(make: Callable[[random.Random], Question], seeded: str) -> Callable[[str, int, int], list[Question]]:
    """Different questions of a split; the same list for the same arguments. ``seeded`` is part of the seed, and so of
    every committed number: it stays as it is, whatever ``make`` is called."""

    def problems(split: str, size: int, seed: int) -> list[Question]:
        rng = random.Random(f"{seeded} {split} {seed}")
        found: dict[str, Question] = {}
        for _ in range(size * TRIES):
            if len(found) == size:
                return list(found.values())
            question = make(rng)
            if split_of(question.text) == split:
                found.setdefault(question.text, question)
        raise ValueError(f"size={size}: {make.__name__} gave {len(found)} different questions of split {split!r}")

    return problems
