"""Straight-line code compiled to postfix: a program is run, and every form with the right value is accepted."""

from __future__ import annotations

import random
import re

from lab.family import Data, Question, solution

PROGRAM = re.compile(r"[1-9+*-]{1,40}")


def make_program(rng: random.Random) -> Question:
    """Statements such as ``a=8-3;b=2+5;c=b*a``; a variable is used once at most, the last one is the result."""
    count = rng.choice((2, 3))
    free: list[str] = []
    statements = []
    for name in "abcd"[:count]:
        operands = []
        for _ in range(2):
            use = free and (rng.random() < 0.5 or (name == "abcd"[count - 1] and not operands))
            operands.append(free.pop(rng.randrange(len(free))) if use else str(rng.randint(1, 9)))
        statements.append(f"{name}={operands[0]}{rng.choice('+-*')}{operands[1]}")
        free.append(name)
    data = tuple(statements)
    return Question(";".join(statements), list(_compile(data, None).values())[-1], data)


def _compile(data: Data, rng: random.Random | None) -> dict[str, str]:
    """Postfix of every variable; operands of + and * in random order where ``rng`` is given."""
    code: dict[str, str] = {}
    for statement in data:
        name, (left, operator, right) = statement[0], statement[2:]
        parts = [code.get(left, left), code.get(right, right)]
        if rng is not None and operator in "+*":
            rng.shuffle(parts)
        code[name] = "".join(parts) + operator
    return code


def write_program(question: Question, rng: random.Random) -> str:
    """A clean solution in one of its forms."""
    code = _compile(question.data, rng)
    return solution([f"{name}:{program}" for name, program in code.items()], list(code.values())[-1])


def run_program(program: str) -> int | None:
    """Value of a postfix program over single digits; None if it is not one.

    >>> run_program("25+83-*"), run_program("2+")
    (35, None)
    """
    if not PROGRAM.fullmatch(program):
        return None
    stack: list[int] = []
    for token in program:
        if token.isdigit():
            stack.append(int(token))
            continue
        if len(stack) < 2:
            return None
        right, left = stack.pop(), stack.pop()
        stack.append(left + right if token == "+" else left - right if token == "-" else left * right)
    return stack[0] if len(stack) == 1 else None


def accepts_program(question: Question, answer: str) -> bool:
    return run_program(answer) == run_program(question.answer)


def right_program(question: Question, lines: list[str], number: int) -> bool:
    """A line is right that gives its variable the right value."""
    expected = list(_compile(question.data, None).items())
    name, colon, program = lines[number].partition(":")
    if number >= len(expected) or not colon or name != expected[number][0]:
        return False
    return run_program(program) == run_program(expected[number][1])
