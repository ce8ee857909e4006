"""Sums that are carried on from line to line: of the demo's terms, of eight digits, and of three among free words."""

from __future__ import annotations

import random
from collections.abc import Callable

from lab.family import Data, Lines, Question, line_is, solution
from lab.wordy import MINUSES, TERMS, among_free_lines, is_free

Line = Callable[[int, str, str, int], str]
"""Value so far, operator, term and result -> the line of a step."""

CHAIN_STEPS, CHAIN_MINUSES = 8, 2


def sum_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{value} {operator} {term} = {result}"


def chain_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{operator}{term} {result}"


def wordy_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{value}{operator}{term} {result}"


def added(line: Line) -> Lines:
    """The right lines of a sum, each written by ``line``."""
    return lambda data: misread(line)(data, 0.0, None)[0]


def misread(line: Line) -> Callable[[Data, float, random.Random | None], tuple[list[str], str]]:
    """Lines of a running sum with the habit, and its end."""

    def solve(data: Data, share: float, rng: random.Random | None) -> tuple[list[str], str]:
        value, *rest = data
        lines = []
        for operator, term in zip(rest[::2], rest[1::2], strict=True):
            read = "+" if rng is not None and rng.random() < share else operator
            result = int(value) + int(read + term)
            lines.append(line(int(value), operator, term, result))
            value = str(result)
        return lines, value

    return solve


sum_lines, chain_lines, wordy_lines = added(sum_line), added(chain_line), added(wordy_line)


def make_chain(rng: random.Random) -> Question:
    return _digits(rng, CHAIN_STEPS, CHAIN_MINUSES)


def make_wordy(rng: random.Random) -> Question:
    return _digits(rng, TERMS, MINUSES, (10, 99))


def _digits(rng: random.Random, terms: int, minuses: int, first: tuple[int, int] = (1, 9)) -> Question:
    """A number from ``first``, and digits that are added or, some of them, taken away."""
    taken = set(rng.sample(range(terms), minuses))
    data = [str(rng.randint(*first))]
    for number in range(terms):
        data += ["-" if number in taken else "+", str(rng.randint(1, 9))]
    return Question("".join(data), misread(sum_line)(tuple(data), 0.0, None)[1], tuple(data))


def write_wordy(question: Question, rng: random.Random) -> str:
    """A clean solution among free lines."""
    return solution(among_free_lines(wordy_lines(question.data), rng), question.answer)


def chain_line_misread(data: Data, number: int) -> str | None:
    """The line of this number after right ones, if its minus is read as a plus; None where it has none."""
    operators, terms = data[1::2], data[2::2]
    if number >= len(terms) or operators[number] != "-":
        return None
    value = int(data[0]) + sum(int(o + t) for o, t in zip(operators[:number], terms[:number], strict=True))
    return chain_line(value, operators[number], terms[number], value + int(terms[number]))


def misread_wordy(data: Data, share: float, rng: random.Random) -> tuple[list[str], str]:
    """Lines with the habit among free ones, and the end of the sum."""
    lines, answer = misread(wordy_line)(data, share, rng)
    return among_free_lines(lines, rng), answer


def right_wordy(question: Question, lines: list[str], number: int) -> bool:
    """A free line is right; of the others, each must stand in its place among them."""
    if is_free(lines[number]):
        return True
    steps = [line for line in lines[: number + 1] if not is_free(line)]
    return line_is(wordy_lines)(question, steps, len(steps) - 1)
