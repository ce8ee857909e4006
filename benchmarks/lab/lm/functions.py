"""Small Python functions asked for in words; a response is the code itself, and its reward comes from the sandbox."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from lab.family import Data, Question
from rredcot_plugin.sandbox import Limits, run_tests

STEPS = 3
PROBES = ((3, -1, 4, 10, -5, 9, 2, 6), (8, 7, 7, -2, 0, 15), (1, 12, -9, 5, 30, 4, -4), (20, 3, 6))
"""Lists that a function is called with."""

LIMITS = Limits(cpu_seconds=2, wall_seconds=20)
"""The clock on the wall is long: on a busy machine it must not fail a right program."""

Operation = tuple[tuple[str, ...], str, Callable[[list[int], int], list[int]]]
OPERATIONS: dict[str, Operation] = {
    "add": (("add {n} to every number", "increase each number by {n}"), "[x + {n} for x in xs]",
            lambda xs, n: [x + n for x in xs]),
    "subtract": (("subtract {n} from every number", "lower each number by {n}"), "[x - {n} for x in xs]",
                 lambda xs, n: [x - n for x in xs]),
    "multiply": (("multiply every number by {n}", "scale each number by {n}"), "[x * {n} for x in xs]",
                 lambda xs, n: [x * n for x in xs]),
    "above": (("keep the numbers above {n}", "drop the numbers that are {n} or less"), "[x for x in xs if x > {n}]",
              lambda xs, n: [x for x in xs if x > n]),
    "below": (("keep the numbers below {n}", "drop the numbers that are {n} or more"), "[x for x in xs if x < {n}]",
              lambda xs, n: [x for x in xs if x < n]),
    "even": (("keep the even numbers", "drop the odd numbers"), "[x for x in xs if x % 2 == 0]",
             lambda xs, n: [x for x in xs if x % 2 == 0]),
    "odd": (("keep the odd numbers", "drop the even numbers"), "[x for x in xs if x % 2 == 1]",
            lambda xs, n: [x for x in xs if x % 2 == 1]),
    "first": (("drop the first {n} numbers", "skip {n} numbers at the start"), "xs[{n}:]", lambda xs, n: xs[n:]),
    "last": (("drop the last {n} numbers", "cut {n} numbers off the end"), "xs[:-{n}]", lambda xs, n: xs[:-n]),
    "reverse": (("reverse the list", "put the list in the opposite order"), "xs[::-1]", lambda xs, n: xs[::-1]),
    "sort": (("sort from small to large", "put the smallest first"), "sorted(xs)", lambda xs, n: sorted(xs)),
    "descend": (("sort from large to small", "put the largest first"), "sorted(xs, reverse=True)",
                lambda xs, n: sorted(xs, reverse=True)),
}  # fmt: skip
ENDS: dict[str, tuple[tuple[str, ...], str, Callable[[list[int]], object]]] = {
    "sum": (("return the sum", "return the total"), "sum(xs)", sum),
    "count": (("return how many are left", "return the number of entries"), "len(xs)", len),
    "list": (("return the list", "return what is left"), "xs", list),
}


def make_function(rng: random.Random) -> Question:
    """Three operations on a list and what to return; ``data``: name, number and wording of each."""
    names = rng.sample(list(OPERATIONS), STEPS)
    data = [f"{name} {rng.randint(2, 5)} {rng.randrange(2)}" for name in names]
    end = rng.choice(list(ENDS))
    data.append(f"{end} 0 {rng.randrange(2)}")
    return Question(f"Write a Python function f(xs): {_in_words(data)}.", "", tuple(data))


def _in_words(data: list[str]) -> str:
    parts = []
    for entry in data:
        name, n, wording = entry.split()
        parts.append((OPERATIONS[name][0] if name in OPERATIONS else ENDS[name][0])[int(wording)].format(n=n))
    return ", then ".join(parts)


def function_lines(data: Data) -> list[str]:
    """The code of the clean solution, a line for each operation."""
    lines = ["def f(xs):"]
    for entry in data[:-1]:
        name, n, _ = entry.split()
        lines.append(f"    xs = {OPERATIONS[name][1].format(n=n)}")
    return [*lines, f"    return {ENDS[data[-1].split()[0]][1]}"]


def write_function(question: Question, rng: random.Random) -> str:
    return "\n".join(function_lines(question.data))


def right_function(question: Question, lines: list[str], number: int) -> bool:
    """A line is right that is the same as that of the clean solution."""
    return lines[number : number + 1] == function_lines(question.data)[number : number + 1]


def expected(data: Data, xs: tuple[int, ...]) -> object:
    """What the function returns for a list, by this module's own operations."""
    values = list(xs)
    for entry in data[:-1]:
        name, n, _ = entry.split()
        values = OPERATIONS[name][2](values, int(n))
    return ENDS[data[-1].split()[0]][2](values)


def accepts_function(question: Question, code: str) -> bool:
    """Whether the code's ``f`` returns what is expected for every list of ``PROBES``, in the sandbox."""
    return _passes(question.data, code)


@lru_cache(maxsize=1 << 16)
def _passes(data: Data, code: str) -> bool:
    if code.split("\n") == function_lines(data):
        return True  # the clean solution itself, which the tests of this module run in the sandbox
    tests = "\n".join(f"assert f({list(xs)}) == {expected(data, xs)!r}" for xs in PROBES)
    return run_tests(code, tests, limits=LIMITS).passed
