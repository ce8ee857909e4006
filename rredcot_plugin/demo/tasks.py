"""Reasoning problems with worked solutions, made offline by `reasoning-gym`.

Two families whose answers differ in kind: `chain_sum` ends in one integer, `number_sorting` in a list of
integers. Each problem can be solved by a few lines of text that a 1M-parameter character model can write:

    chain_sum       "8 + 7 - 9 ="                  number_sorting  "Sort ascending: 47 19 25"
                    8 + 7 = 15                                     19 | 47 25
                    15 - 9 = 6                                     25 | 47
                    #### 6                                         #### 19 25 47

(`19 | 47 25` reads "19 comes next, 47 and 25 are left".) The question texts are shortened from the gym's so
that prompt and solution fit into 64 + 96 byte tokens. `solve` also writes solutions *with mistakes*: a slip
in one step is carried through all later ones, as in a real chain of thought.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import reasoning_gym

ANSWER_MARKER = "####"
Split = Literal["train", "val"]
_VAL_SHARE = 8  # one question in eight belongs to validation
_SEED_STRIDE = 1_000_003  # the gym seeds item i with seed + i: keep the streams of different seeds apart
_TRIES_PER_PROBLEM = 100


@dataclass(frozen=True)
class Problem:
    """One question; `data` is what the solver needs (an expression, or the numbers in the asked order)."""

    task: str
    question: str
    answer: str
    data: tuple[str, ...]


@dataclass(frozen=True)
class Solution:
    """A worked solution: `text` ends in the line `#### <answer>`; `mistakes` counts the wrong steps."""

    text: str
    answer: str
    mistakes: int


@dataclass(frozen=True)
class MistakeRates:
    """Probability of a slip per step. A step is hard if it carries or borrows, or if the two best numbers
    left are less than ten apart; the slips of hard steps are the plausible ones (forgotten carry, runner-up)."""

    easy: float
    hard: float

    def draw(self, rng: random.Random, is_hard: bool) -> bool:
        """True if the step goes wrong."""
        return rng.random() < (self.hard if is_hard else self.easy)


NO_MISTAKES = MistakeRates(easy=0.0, hard=0.0)


@dataclass(frozen=True)
class Task:
    """A problem family: the gym's configuration, how to read its items, how to solve them."""

    gym_config: dict[str, Any]
    read: Callable[[dict[str, Any]], Problem]
    solve: Callable[[tuple[str, ...], random.Random, MistakeRates], Solution]


def is_hard_sum(left: int, right: int) -> bool:
    """True if `left + right` (signed) carries or borrows in the units column."""
    small, large = sorted((abs(left), abs(right)))
    if (left < 0) == (right < 0):
        return small % 10 + large % 10 >= 10
    return large % 10 < small % 10


def _slipped_sum(left: int, right: int, rng: random.Random) -> int:
    """A plausible wrong value of `left + right`: carry forgotten, one off, or the operator's sign swapped."""
    total = left + right
    if is_hard_sum(left, right):
        same_sign = (left < 0) == (right < 0)
        return total + (10 if (total < 0) == same_sign else -10)
    return rng.choice([wrong for wrong in (total - 1, total + 1, left - right) if wrong != total])


def _solve_chain_sum(data: tuple[str, ...], rng: random.Random, rates: MistakeRates) -> Solution:
    value, mistakes, lines = int(data[0]), 0, []
    for operator, term in zip(data[1::2], data[2::2], strict=True):
        signed = int(operator + term)
        result = value + signed
        if rates.draw(rng, is_hard_sum(value, signed)):
            result, mistakes = _slipped_sum(value, signed, rng), mistakes + 1
        lines.append(f"{value} {operator} {term} = {result}")
        value = result
    return _finish(lines, str(value), mistakes)


def _solve_number_sorting(data: tuple[str, ...], rng: random.Random, rates: MistakeRates) -> Solution:
    choose = min if data[0] == "ascending" else max
    left, picked, mistakes, lines = [int(number) for number in data[1:]], [], 0, []
    while len(left) > 1:
        pick = choose(left)
        others = [number for number in left if number != pick]
        runner_up = choose(others, default=pick)
        is_hard = abs(runner_up - pick) < 10
        if others and rates.draw(rng, is_hard):
            pick, mistakes = (runner_up if is_hard else rng.choice(others)), mistakes + 1
        left.remove(pick)
        picked.append(pick)
        lines.append(f"{pick} | {_join(left)}")
    return _finish(lines, _join(picked + left), mistakes)


def _join(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def _finish(lines: list[str], answer: str, mistakes: int) -> Solution:
    return Solution("\n".join([*lines, f"{ANSWER_MARKER} {answer}"]), answer, mistakes)


def _read_chain_sum(item: dict[str, Any]) -> Problem:
    expression = item["metadata"]["expression"]
    return Problem("chain_sum", f"{expression} =", item["answer"], tuple(expression.split()))


def _read_number_sorting(item: dict[str, Any]) -> Problem:
    direction = item["metadata"]["direction"]
    numbers = [int(float(number)) for number in item["metadata"]["original_numbers"]]  # the gym writes "17.0"
    answer = _join([int(float(number)) for number in item["metadata"]["sorted_numbers"]])
    question = f"Sort {direction}: {_join(numbers)}"
    return Problem("number_sorting", question, answer, (direction, *map(str, numbers)))


TASKS: dict[str, Task] = {
    "chain_sum": Task(
        {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}, _read_chain_sum, _solve_chain_sum
    ),
    "number_sorting": Task(
        {
            "min_numbers": 3,
            "max_numbers": 4,
            "min_decimals": 0,
            "max_decimals": 0,
            "min_value": 10.0,
            "max_value": 99.0,
        },
        _read_number_sorting,
        _solve_number_sorting,
    ),
}


def get_task(name: str) -> Task:
    """The task called `name`; ValueError with the known names otherwise."""
    if name not in TASKS:
        raise ValueError(f"task: got {name!r}, expected one of {sorted(TASKS)}")
    return TASKS[name]


def solve(problem: Problem, rng: random.Random | None = None, rates: MistakeRates = NO_MISTAKES) -> Solution:
    """Work `problem` out step by step; with `rates` above zero some steps go wrong and stay wrong."""
    return get_task(problem.task).solve(problem.data, rng or random.Random(0), rates)


def split_of(question: str) -> Split:
    """The split a question belongs to, by its hash: the same for every seed and every data set, so that
    what the reasoner was trained on can never turn up in somebody's validation set."""
    return "val" if hashlib.sha256(question.encode()).digest()[0] % _VAL_SHARE == 0 else "train"


def generate(task: str, split: Split, size: int, seed: int) -> list[Problem]:
    """`size` different problems of one task and split; the same list for the same arguments.

    Raises:
        ValueError: unknown task or split, negative size, or a task with too few different questions.
    """
    if split not in ("train", "val"):
        raise ValueError(f"split: got {split!r}, expected 'train' or 'val'")
    if size < 0:
        raise ValueError(f"size: got {size}, expected a number >= 0")
    found: dict[str, Problem] = {}
    for problem in _stream(task, seed, size * _TRIES_PER_PROBLEM):
        if len(found) == size:
            break
        if split_of(problem.question) == split:
            found.setdefault(problem.question, problem)
    if len(found) < size:
        raise ValueError(f"size: task {task!r} gave only {len(found)} different {split} questions, not {size}")
    return list(found.values())


def _stream(task: str, seed: int, length: int) -> Iterator[Problem]:
    spec = get_task(task)
    if length == 0:
        return
    items = reasoning_gym.create_dataset(task, seed=seed * _SEED_STRIDE, size=length, **spec.gym_config)
    for index in range(length):
        yield spec.read(items[index])
