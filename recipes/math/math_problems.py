"""Mathematical problems of the Hugging Face hub and of files: where they are, and how a row becomes a problem."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reward
from data_files import FILES, DataError, plain, read_file, read_hub

QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "ground_truth", "expected_answer")
SOLUTION_COLUMNS = ("solution", "rationale", "response")


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub; `answer` None: it is read off the solution."""

    path: str
    question: str
    answer: str | None
    solution: str | None
    split: str = "train"
    name: str | None = None


SOURCES = {
    "numina": HubSource("AI-MO/NuminaMath-CoT", "problem", None, "solution"),
    "open-rs": HubSource("knoveleng/open-rs", "problem", "answer", "solution"),
    "gsm8k": HubSource("openai/gsm8k", "question", "answer", None, name="main"),
}
BENCHMARKS = {
    "aime24": HubSource("HuggingFaceH4/aime_2024", "problem", "answer", None),
    "aime25": HubSource("math-ai/aime25", "problem", "answer", None, "test"),
    "math500": HubSource("HuggingFaceH4/MATH-500", "problem", "answer", "solution", "test"),
    "amc23": HubSource("math-ai/amc23", "question", "answer", None, "test"),
    "minerva": HubSource("math-ai/minervamath", "question", "answer", None, "test"),
    "gsm8k-test": HubSource("openai/gsm8k", "question", "answer", None, "test", "main"),
}


@dataclass(frozen=True)
class Problem:
    """One question with its answer and the solutions that reach it."""

    question: str
    answer: str
    references: tuple[str, ...] = ()


def question_key(question: str) -> str:
    r"""What two wordings of the same question have in common.

    >>> question_key("Find  $x$,\\; if\n$2x=4$.") == question_key("find $x$, if $2 x = 4$.")
    True
    """
    plain = re.sub(r"\\(?:[,;:! ]|(?:quad|qquad|left|right|displaystyle|limits)(?![a-zA-Z]))", "", question)
    plain = plain.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return re.sub(r"[\s$~]+|\\[()\[\]]", "", plain).lower()


@dataclass(frozen=True)
class Columns:
    """Which column holds what; None: look for a usual name."""

    question: str | None = None
    answer: str | None = None
    solution: str | None = None


def _pick(row: Mapping[str, Any], name: str | None, usual: Sequence[str], where: str, what: str) -> str | None:
    """The name of a column; DataError where it was asked for by name and is not there."""
    if name is not None and name not in row:
        raise DataError(
            f"{where}: no column {name!r} (there are {', '.join(map(str, row))}); choose with --{what}-column"
        )
    return name if name is not None else next((usual_name for usual_name in usual if usual_name in row), None)


def to_problem(row: Mapping[str, Any], columns: Columns, where: str) -> Problem:
    """One row as a problem (the answer "" if there is none); DataError naming the row for missing columns."""
    question = _pick(row, columns.question, QUESTION_COLUMNS, where, "question")
    if question is None:
        raise DataError(
            f"{where}: none of the columns {', '.join(QUESTION_COLUMNS)}; choose with --question-column"
        )
    answer = _pick(row, columns.answer, ANSWER_COLUMNS, where, "answer")
    solution = _pick(row, columns.solution, SOLUTION_COLUMNS, where, "solution")
    if answer is None and solution is None:
        raise DataError(
            f"{where}: no answer and no solution column; choose with --answer-column, --solution-column"
        )
    worked = _text(plain(row[solution], where, solution)) if solution is not None else ""
    final = _text(plain(row[answer], where, answer)) if answer is not None else ""
    if answer is None or reward.extract_answer(final) is not None:  # a solution in the answer's place, as in GSM8K
        worked = worked or final
        final = reward.extract_answer(final or worked) or ""
    return Problem(_text(plain(row[question], where, question)), final, (worked,) if worked else ())


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    is_missing = value is None or (isinstance(value, float) and value != value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if is_missing else str(value).strip()


def read_problems(source: str, columns: Columns, hub: Mapping[str, HubSource]) -> Iterator[Problem]:
    """The problems of a file or of a known data set, in its order."""
    path = Path(source)
    rows: Iterator[tuple[str, Mapping[str, Any]]]
    if source in hub:
        known = hub[source]
        columns = Columns(
            columns.question or known.question,
            columns.answer or known.answer,
            columns.solution or known.solution,
        )
        rows = ((f"{source}, row {i}", row) for i, row in enumerate(read_hub(known), start=1))
    elif path.suffix in FILES:
        rows = iter(read_file(path))
    else:
        raise DataError(
            f"{source!r}: expected one of {', '.join([*hub])}, reasoning-gym, or a file ending in {', '.join(FILES)}"
        )
    return (to_problem(row, columns, where) for where, row in rows)
