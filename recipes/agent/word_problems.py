"""Word problems for the tiny tool user, and dialogues that work them out with the calculator.

    "12 bags of 35 nuts, 48 eaten. Left?"      call 12*35, told 420; call 420-48, told 372; say "#### 372"

One or two calls each. The products are beyond a model of a million parameters, the expressions are not. ``work`` also
writes dialogues *with mistakes*: a wrong operation, a wrong number, an answer that is a guess or that comes too early. What
follows a mistake is worked out with it, as an agent would.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from arithmetic import calculate

ANSWER = "#### "
NOUNS = ("nuts", "pens", "eggs", "cups", "keys", "hats", "pins", "bolts")
LEAST, MOST = 12, 79


@dataclass(frozen=True)
class Kind:
    """A family of problems: its text and the operations of its calls. ``{a}`` to ``{c}`` are numbers."""

    text: str
    operations: tuple[str, ...]


KINDS = (
    Kind("{a} bags of {b} {noun}. All?", ("*",)),
    Kind("{a} bags of {b} {noun}, {c} more. All?", ("*", "+")),
    Kind("{a} bags of {b} {noun}, {c} lost. Left?", ("*", "-")),
    Kind("{a} {noun}, {b} more, in {c} boxes each. All?", ("+", "*")),
)


@dataclass(frozen=True)
class Problem:
    """A question, the numbers in the order in which they are needed, and the operation of each call."""

    question: str
    numbers: tuple[int, ...]
    operations: tuple[str, ...]

    @property
    def answer(self) -> str:
        return work(self, random.Random(0), NO_MISTAKES)[-1].removeprefix(ANSWER)


@dataclass(frozen=True)
class MistakeRates:
    """Probabilities: of a wrong operation and of a wrong number in a call, and, in place of a call, of an answer."""

    operation: float
    number: float
    early: float


NO_MISTAKES = MistakeRates(0.0, 0.0, 0.0)


def generate(size: int, seed: int) -> Iterator[Problem]:
    """`size` problems; the same for the same seed, and some may occur twice."""
    rng = random.Random(seed)
    for _ in range(size):
        kind = rng.choice(KINDS)
        a, b, c = (rng.randint(LEAST, MOST) for _ in range(3))
        question = kind.text.format(a=a, b=b, c=c, noun=rng.choice(NOUNS))
        yield Problem(question, (a, b, c)[: len(kind.operations) + 1], kind.operations)


def work(problem: Problem, rng: random.Random, rates: MistakeRates) -> list[str]:
    """What the model and the calculator say in turn: expression, result, ..., and last the answer, ``#### 372``."""
    said: list[str] = []
    result = str(problem.numbers[0])
    for operation, number in zip(problem.operations, problem.numbers[1:], strict=True):
        if rng.random() < rates.early:
            return [*said, f"{ANSWER}{result if said else rng.randint(LEAST, MOST * MOST)}"]
        if rng.random() < rates.operation:
            operation = rng.choice([other for other in "+-*" if other != operation])
        if rng.random() < rates.number:
            number = rng.choice([*problem.numbers, rng.randint(LEAST, MOST)])
        expression = f"{result}{operation}{number}"
        result = calculate(expression)
        said += [expression, result]
    return [*said, f"{ANSWER}{result}"]
