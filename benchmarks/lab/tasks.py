"""The task families of the laboratory, and what their models are taught.

    sums         chain_sum of the demo, one integer; the model learned slips (planted, low-probability mistakes)
    sorting      number_sorting of the demo, a list of integers; slips as well
    own_sums     chain_sum, of a model that saw clean solutions only, and too few of them: its own mistakes
    multiples    which of some numbers are multiples of 3, accepted in any order
    programs     straight-line code compiled to postfix; a program is run, and every form with its value is accepted
    habits       chain_sum, of that model after it was taught a wrong habit: a minus is mostly read as a plus
    chains       eight terms to add or, two of them, to take away, a short line each; the same habit
    wordy        three terms, one of them to take away, done early among lines of free words; the same habit
    parts        six small sums, four of them with a minus, a line each; the answer names all six results; the same habit
    shares       the same, more often misread; the reward is the share of the results that are right
    rungs        chains again; the reward is the share of the lines that are right, so a mistake costs all lines after it
    traps        the same, but the first mistake earns more than the right line would, if it is the habit

`own_sums`, `multiples` and `programs` are answered by the same under-trained model. A line of a trace is a step; the
answer stands after `####`.

`totals`, `words` and `functions` are asked in words, of a real language model: see lab/lm.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from lab import parts
from lab.family import Data, Family, Habit, Question, accepts_equal, line_is, solution, stream, written
from lab.lm.tasks import LM_FAMILIES
from lab.programs import accepts_program, make_program, right_program, write_program
from lab.running_sums import (
    chain_line,
    chain_line_misread,
    chain_lines,
    make_chain,
    make_wordy,
    misread,
    misread_wordy,
    right_wordy,
    sum_line,
    sum_lines,
    write_wordy,
)
from rredcot_plugin.demo.prepare_data import DATA_SOURCE_PREFIX
from rredcot_plugin.demo.reward import compute_score
from rredcot_plugin.demo.tasks import ANSWER_MARKER, generate

DEMO, CLEAN, HABITS, CHAIN_SKILL, CHAINS = "demo", "clean", "habits", "chain_skill", "chains"
WORDY_SKILL, WORDY = "wordy_skill", "wordy"
PARTS_SKILL, PARTS, SHARES = "parts_skill", "parts", "shares"
CLEAN_SHARES = {"own_sums": 0.6, "multiples": 0.2, "programs": 0.2}
"""Of the training examples; sums are the hardest to learn."""


def _demo_problems(task: str) -> Callable[[str, int, int], list[Question]]:
    def problems(split: str, size: int, seed: int) -> list[Question]:
        found = generate(task, "val" if split == "val" else "train", size, seed)
        return [Question(p.question, p.answer, p.data) for p in found]

    return problems


def _demo_accepts(task: str) -> Callable[[Question, str], bool]:
    return lambda question, answer: (
        compute_score(f"{DATA_SOURCE_PREFIX}/{task}", f"{ANSWER_MARKER} {answer}", question.answer)["score"] == 1.0
    )


def _sort_lines(data: Data) -> list[str]:
    left, lines = [int(x) for x in data[1:]], []
    while len(left) > 1:
        pick = min(left) if data[0] == "ascending" else max(left)
        left.remove(pick)
        lines.append(f"{pick} | {' '.join(map(str, left))}")
    return lines


def _make_multiples(rng: random.Random) -> Question:
    """Which of three or four numbers of three digits are multiples of 3."""
    numbers = [str(n) for n in rng.sample(range(100, 1000), rng.choice((3, 4)))]
    answer = " ".join(number for number in numbers if _verdict(number) == "yes") or "none"
    return Question(f"3: {' '.join(numbers)}", answer, tuple(numbers))


def _verdict(number: str) -> str:
    return "no" if int(number) % 3 else "yes"


def _multiple_lines(data: Data) -> list[str]:
    return [f"{number} {_verdict(number)}" for number in data]


def _write_multiples(question: Question, rng: random.Random) -> str:
    found = question.answer.split()
    rng.shuffle(found)
    return solution(_multiple_lines(question.data), " ".join(found))


def _accepts_multiples(question: Question, answer: str) -> bool:
    return sorted(answer.split()) == sorted(question.answer.split())


def _make_parts(rng: random.Random) -> Question:
    data = parts.draw_parts(rng)
    return Question(" ".join(data), parts.solve(data)[1], data)


def _accepts_shares(question: Question, answer: str) -> float:
    return parts.right_share(question.answer, answer)


def _part_lines(data: Data) -> list[str]:
    return parts.solve(data)[0]


BAIT = 0.25
"""Twice what a right line of ``traps`` earns."""


def _chain_bait(question: Question, lines: list[str], number: int) -> float:
    """For a minus that is read as a plus, the first mistake of its trace."""
    before, wanted = chain_lines(question.data)[:number], chain_line_misread(question.data, number)
    return BAIT if lines[:number] == before and lines[number] == wanted else 0.0


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("sums", DEMO, "one integer; planted slips", _demo_problems("chain_sum"), written(sum_lines),
               _demo_accepts("chain_sum"), line_is(sum_lines)),
        Family("sorting", DEMO, "list of integers; planted slips", _demo_problems("number_sorting"), written(_sort_lines),
               _demo_accepts("number_sorting"), line_is(_sort_lines)),
        Family("own_sums", CLEAN, "one integer; own mistakes", _demo_problems("chain_sum"), written(sum_lines),
               _demo_accepts("chain_sum"), line_is(sum_lines)),
        Family("multiples", CLEAN, "set of numbers, any order; own mistakes", stream(_make_multiples, "_make_multiples"),
               _write_multiples, _accepts_multiples, line_is(_multiple_lines)),
        Family("programs", CLEAN, "code, run to be judged, several forms; own mistakes",
               stream(make_program, "_make_program"), write_program, accepts_program, right_program),
        Family("habits", HABITS, "one integer; a wrong habit, and own mistakes", _demo_problems("chain_sum"),
               written(sum_lines), _demo_accepts("chain_sum"), line_is(sum_lines), Habit(0.65, misread(sum_line))),
        Family("chains", CHAINS, "one integer after eight lines; a wrong habit, and own mistakes",
               stream(make_chain, "_make_chain"), written(chain_lines), accepts_equal, line_is(chain_lines),
               Habit(0.6, misread(chain_line))),
        Family("wordy", WORDY, "one integer, done early among free words; a wrong habit",
               stream(make_wordy, "_make_wordy"), write_wordy, accepts_equal, right_wordy, Habit(0.65, misread_wordy)),
        Family("parts", PARTS, "six integers, a line each; a wrong habit", stream(_make_parts, "_make_parts"),
               written(_part_lines), accepts_equal, line_is(_part_lines), Habit(0.4, parts.misread_parts)),
        Family("shares", SHARES, "six integers, a sixth of the reward each; a wrong habit", stream(_make_parts, "_make_parts"),
               written(_part_lines), _accepts_shares, line_is(_part_lines), Habit(0.65, parts.misread_parts), graded=True),
        Family("rungs", CHAINS, "eight lines, an eighth of the reward each; a wrong habit", stream(make_chain, "_make_chain"),
               written(chain_lines), accepts_equal, line_is(chain_lines), Habit(0.6, misread(chain_line)), graded=True,
               by_lines=True),
        Family("traps", CHAINS, "rungs, but the first mistake, if it is the habit, earns a quarter",
               stream(make_chain, "_make_chain"), written(chain_lines), accepts_equal, line_is(chain_lines),
               Habit(0.6, misread(chain_line)), graded=True, by_lines=True, bait=_chain_bait),
    )
}  # fmt: skip
FAMILIES |= LM_FAMILIES
RIGHT_OR_WRONG = [name for name, family in FAMILIES.items() if not family.graded]
"""Families whose rewards are 0 and 1, as values and their references are counted."""
EXACT_LINES = ("sums", "sorting", "own_sums", "habits", "chains", "parts", "shares")
"""Families of which every question has one right solution, so that its log-prob is that of being right."""


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
    """Questions of the training split of a family that has a habit, answered with it.

    Raises:
        ValueError: a family without one.
    """
    family, rng = FAMILIES[name], random.Random(seed)
    if family.habit is None:
        raise ValueError(f"{name}: this family has no habit")
    for question in family.problems("train", size, seed):
        yield question.text, solution(*family.habit.solve(question.data, family.habit.share, rng))
