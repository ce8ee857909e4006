"""Task families of the laboratory: questions, clean solutions, rewards, and where a trace first goes wrong.

    sums         chain_sum of the demo, one integer; the model learned slips (planted, low-probability mistakes)
    sorting      number_sorting of the demo, a list of integers; slips as well
    own_sums     chain_sum, of a model that saw clean solutions only, and too few of them: its own mistakes
    multiples    which of some numbers are multiples of 3, accepted in any order
    programs     straight-line code compiled to postfix; a program is run, and every form with its value is accepted
    habits       chain_sum, of that model after it was taught a wrong habit: a minus is mostly read as a plus
    chains       eight terms to add or, two of them, to take away, a short line each; the same habit
    wordy        three terms, one of them to take away, done early among lines of free words; the same habit
    parts        six small sums, four of them with a minus, a line each; the answer names all six results; the same habit

`own_sums`, `multiples` and `programs` are answered by the same under-trained model. A line of a trace is a step; the
answer stands behind `####`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab import parts
from lab.wordy import MINUSES, TERMS, among_free_lines, is_free
from rredcot_plugin.demo.prepare_data import DATA_SOURCE_PREFIX
from rredcot_plugin.demo.reasoner import IM_END
from rredcot_plugin.demo.reward import compute_score, extract_answer
from rredcot_plugin.demo.tasks import ANSWER_MARKER, generate, split_of

DEMO, CLEAN, HABITS, CHAIN_SKILL, CHAINS = "demo", "clean", "habits", "chain_skill", "chains"
WORDY_SKILL, WORDY = "wordy_skill", "wordy"
PARTS_SKILL, PARTS = "parts_skill", "parts"
PROGRAM = re.compile(r"[1-9+*-]{1,40}")
TRIES = 200
CLEAN_SHARES = {"own_sums": 0.6, "multiples": 0.2, "programs": 0.2}
"""Of the training examples; sums are the hardest to learn."""
HABIT = {"habits": 0.65, "chains": 0.6, "wordy": 0.65, "parts": 0.4}
"""How often a minus is read as a plus, by family: a habit and no slip, so that sharpening it does not help."""
CHAIN_STEPS, CHAIN_MINUSES = 8, 2


@dataclass(frozen=True)
class Question:
    """What is asked, one right answer, and ``data``: the statements or terms that the checks read."""

    text: str
    answer: str
    data: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """``problems(split, size, seed)``; ``write``: a clean solution; ``accepts``: whether an answer is right;
    ``right(question, lines, number)``: whether the line of that number is right behind those before it."""

    name: str
    model: str
    kind: str
    problems: Callable[[str, int, int], list[Question]]
    write: Callable[[Question, random.Random], str]
    accepts: Callable[[Question, str], bool]
    right: Callable[[Question, list[str], int], bool]

    def reward(self, question: Question, response: str) -> float:
        """1 if the answer behind the last marker is accepted, else 0; any text will do."""
        answer = extract_answer(response.split(IM_END)[0])
        return float(answer is not None and self.accepts(question, answer))

    def first_mistake(self, question: Question, response: str) -> int | None:
        """Number of the first line that is not right; the answer's line counts; None if all are.

        Lines are the segments of ``newline``; what stands from the answer marker on is one line.
        """
        body = response.split(IM_END)[0]
        steps, marker, _ = body.rpartition(ANSWER_MARKER)
        lines = [line for line in (steps if marker else body).split("\n") if line]
        for number in range(len(lines)):
            if not self.right(question, lines, number):
                return number
        return None if self.reward(question, response) else len(lines)


def _demo_problems(task: str) -> Callable[[str, int, int], list[Question]]:
    def problems(split: str, size: int, seed: int) -> list[Question]:
        found = generate(task, "val" if split == "val" else "train", size, seed)
        return [Question(p.question, p.answer, p.data) for p in found]

    return problems


def _demo_accepts(task: str) -> Callable[[Question, str], bool]:
    return lambda question, answer: (
        compute_score(f"{DATA_SOURCE_PREFIX}/{task}", f"{ANSWER_MARKER} {answer}", question.answer)["score"] == 1.0
    )


def _sum_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{value} {operator} {term} = {result}"


def _chain_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{operator}{term} {result}"


def _wordy_line(value: int, operator: str, term: str, result: int) -> str:
    return f"{value}{operator}{term} {result}"


def _added(line: Callable[[int, str, str, int], str]) -> Callable[[tuple[str, ...]], list[str]]:
    """The right lines of a sum, each written by ``line``."""

    def lines(data: tuple[str, ...]) -> list[str]:
        value, found = int(data[0]), []
        for operator, term in zip(data[1::2], data[2::2], strict=True):
            result = value + int(operator + term)
            found.append(line(value, operator, term, result))
            value = result
        return found

    return lines


_sum_lines, _chain_lines, _wordy_lines = _added(_sum_line), _added(_chain_line), _added(_wordy_line)


def _solution(lines: list[str], answer: str) -> str:
    return "\n".join([*lines, f"{ANSWER_MARKER} {answer}"])


def _written(lines: Callable[[tuple[str, ...]], list[str]]) -> Callable[[Question, random.Random], str]:
    """A clean solution that leaves no choice: these lines and the answer."""
    return lambda question, rng: _solution(lines(question.data), question.answer)


def _write_wordy(question: Question, rng: random.Random) -> str:
    return _solution(among_free_lines(_wordy_lines(question.data), rng), question.answer)


def _digits(rng: random.Random, terms: int, minuses: int, first: tuple[int, int] = (1, 9)) -> Question:
    """A number from ``first``, and digits that are added or, some of them, taken away."""
    taken = set(rng.sample(range(terms), minuses))
    data = [str(rng.randint(*first))]
    for number in range(terms):
        data += ["-" if number in taken else "+", str(rng.randint(1, 9))]
    total = int(data[0]) + sum(int(o + t) for o, t in zip(data[1::2], data[2::2], strict=True))
    return Question("".join(data), str(total), tuple(data))


def _make_chain(rng: random.Random) -> Question:
    return _digits(rng, CHAIN_STEPS, CHAIN_MINUSES)


def _make_wordy(rng: random.Random) -> Question:
    return _digits(rng, TERMS, MINUSES, (10, 99))


def _make_parts(rng: random.Random) -> Question:
    data = parts.draw_parts(rng)
    return Question(" ".join(data), parts.solve(data, [False] * len(data))[1], data)


def _part_lines(data: tuple[str, ...]) -> list[str]:
    return parts.solve(data, [False] * len(data))[0]


def _sort_lines(data: tuple[str, ...]) -> list[str]:
    left, lines = [int(x) for x in data[1:]], []
    while len(left) > 1:
        pick = min(left) if data[0] == "ascending" else max(left)
        left.remove(pick)
        lines.append(f"{pick} | {' '.join(map(str, left))}")
    return lines


def _line_is(expected: Callable[[tuple[str, ...]], list[str]]) -> Callable[[Question, list[str], int], bool]:
    def right(question: Question, lines: list[str], number: int) -> bool:
        return lines[number : number + 1] == expected(question.data)[number : number + 1]

    return right


def _right_wordy(question: Question, lines: list[str], number: int) -> bool:
    if is_free(lines[number]):
        return True
    steps = [line for line in lines[: number + 1] if not is_free(line)]
    return _line_is(_wordy_lines)(question, steps, len(steps) - 1)


def _stream(make: Callable[[random.Random], Question]) -> Callable[[str, int, int], list[Question]]:
    """Different questions of a split; the same list for the same arguments."""

    def problems(split: str, size: int, seed: int) -> list[Question]:
        rng = random.Random(f"{make.__name__} {split} {seed}")
        found: dict[str, Question] = {}
        for _ in range(size * TRIES):
            if len(found) == size:
                return list(found.values())
            question = make(rng)
            if split_of(question.text) == split:
                found.setdefault(question.text, question)
        raise ValueError(f"size={size}: {make.__name__} gave {len(found)} different questions of split {split!r}")

    return problems


def _make_multiples(rng: random.Random) -> Question:
    """Which of three or four numbers of three digits are multiples of 3."""
    numbers = [str(n) for n in rng.sample(range(100, 1000), rng.choice((3, 4)))]
    answer = " ".join(number for number in numbers if _verdict(number) == "yes") or "none"
    return Question(f"3: {' '.join(numbers)}", answer, tuple(numbers))


def _verdict(number: str) -> str:
    return "no" if int(number) % 3 else "yes"


def _multiple_lines(data: tuple[str, ...]) -> list[str]:
    return [f"{number} {_verdict(number)}" for number in data]


def _write_multiples(question: Question, rng: random.Random) -> str:
    found = question.answer.split()
    rng.shuffle(found)
    return _solution(_multiple_lines(question.data), " ".join(found))


def _accepts_multiples(question: Question, answer: str) -> bool:
    return sorted(answer.split()) == sorted(question.answer.split())


def _make_program(rng: random.Random) -> Question:
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


def _compile(data: tuple[str, ...], rng: random.Random | None) -> dict[str, str]:
    """Postfix of every variable; operands of + and * in random order where ``rng`` is given."""
    code: dict[str, str] = {}
    for statement in data:
        name, (left, operator, right) = statement[0], statement[2:]
        parts = [code.get(left, left), code.get(right, right)]
        if rng is not None and operator in "+*":
            rng.shuffle(parts)
        code[name] = "".join(parts) + operator
    return code


def _write_program(question: Question, rng: random.Random) -> str:
    code = _compile(question.data, rng)
    return _solution([f"{name}:{program}" for name, program in code.items()], list(code.values())[-1])


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


def _accepts_equal(question: Question, answer: str) -> bool:
    return answer == question.answer


def _accepts_program(question: Question, answer: str) -> bool:
    return run_program(answer) == run_program(question.answer)


def _right_program(question: Question, lines: list[str], number: int) -> bool:
    expected = list(_compile(question.data, None).items())
    name, colon, program = lines[number].partition(":")
    if number >= len(expected) or not colon or name != expected[number][0]:
        return False
    return run_program(program) == run_program(expected[number][1])


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("sums", DEMO, "one integer; planted slips", _demo_problems("chain_sum"), _written(_sum_lines),
               _demo_accepts("chain_sum"), _line_is(_sum_lines)),
        Family("sorting", DEMO, "list of integers; planted slips", _demo_problems("number_sorting"), _written(_sort_lines),
               _demo_accepts("number_sorting"), _line_is(_sort_lines)),
        Family("own_sums", CLEAN, "one integer; own mistakes", _demo_problems("chain_sum"), _written(_sum_lines),
               _demo_accepts("chain_sum"), _line_is(_sum_lines)),
        Family("multiples", CLEAN, "set of numbers, any order; own mistakes", _stream(_make_multiples),
               _write_multiples, _accepts_multiples, _line_is(_multiple_lines)),
        Family("programs", CLEAN, "code, run to be judged, several forms; own mistakes", _stream(_make_program),
               _write_program, _accepts_program, _right_program),
        Family("habits", HABITS, "one integer; a wrong habit, and own mistakes", _demo_problems("chain_sum"),
               _written(_sum_lines), _demo_accepts("chain_sum"), _line_is(_sum_lines)),
        Family("chains", CHAINS, "one integer after eight lines; a wrong habit, and own mistakes",
               _stream(_make_chain), _written(_chain_lines), _accepts_equal, _line_is(_chain_lines)),
        Family("wordy", WORDY, "one integer, done early among free words; a wrong habit",
               _stream(_make_wordy), _write_wordy, _accepts_equal, _right_wordy),
        Family("parts", PARTS, "six integers, a line each; a wrong habit", _stream(_make_parts), _written(_part_lines),
               _accepts_equal, _line_is(_part_lines)),
    )
}  # fmt: skip


def clean_examples(size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Questions of the training split with clean solutions, the families of the clean model by ``CLEAN_SHARES``."""
    rng = random.Random(seed)
    pairs = []
    for name, share in CLEAN_SHARES.items():
        family = FAMILIES[name]
        pairs += [(q.text, family.write(q, rng)) for q in family.problems("train", math.ceil(size * share), seed)]
    rng.shuffle(pairs)
    yield from pairs[:size]


def family_examples(name: str) -> Callable[[int, int], Iterator[tuple[str, str]]]:
    """Questions of the training split of a family with clean solutions, by size and seed."""

    def examples(size: int, seed: int) -> Iterator[tuple[str, str]]:
        family, rng = FAMILIES[name], random.Random(seed)
        yield from ((q.text, family.write(q, rng)) for q in family.problems("train", size, seed))

    return examples


def habit_examples(name: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Questions of the training split; a minus is read as a plus ``HABIT`` of the time, and the result carried on."""
    rng = random.Random(seed)
    for question in FAMILIES[name].problems("train", size, seed):
        if name == PARTS:
            lines, answer = parts.solve(question.data, [rng.random() < HABIT[name] for _ in question.data])
        else:
            lines, answer = _misread_sum(name, question.data, rng)
        if name == WORDY:
            lines = among_free_lines(lines, rng)
        yield question.text, _solution(lines, answer)


def _misread_sum(name: str, data: tuple[str, ...], rng: random.Random) -> tuple[list[str], str]:
    """Lines of a running sum with the habit, and its end."""
    line = {HABITS: _sum_line, CHAINS: _chain_line, WORDY: _wordy_line}[name]
    value, *rest = data
    lines = []
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        read = "+" if rng.random() < HABIT[name] else operator
        result = int(value) + int(read + term)
        lines.append(line(int(value), operator, term, result))
        value = str(result)
    return lines, value
