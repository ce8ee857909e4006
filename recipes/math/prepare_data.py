r"""Write train.parquet and val.parquet with mathematical problems in verl's data format.

    python prepare_data.py --source open-rs --out data/open_rs --val-size 256 --eval aime24 --eval math500
    python prepare_data.py --source my_problems.jsonl --out data/mine --answer-column label

- A question occurs once: the same text but for case, white space and LaTeX spacing is the same question, in both
  splits and against every benchmark given with `--exclude` or `--eval`.
- Which questions are held out depends on their text only (a hash), not on the order of the source or the seed.
- Answers that math-verify cannot read are dropped: no response to them could be right.
- The same arguments give the same files; their sha256 are printed and kept in OUT/checksums.txt.

Sources from the Hugging Face hub need `pip install datasets`; files and reasoning-gym do not.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
import reward
from data_files import (
    FILES,
    SCHEMA,
    SPLITS,
    Counts,
    DataError,
    add_arguments,
    benchmarks_of,
    check_free,
    checked_arguments,
    data_source_of,
    preselect,
    read_file,
    read_hub,
    split_and_cut,
    write_files,
)

INSTRUCTION = "Let's think step by step and put the final answer within \\boxed{}."
QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "ground_truth", "expected_answer")
SOLUTION_COLUMNS = ("solution", "rationale", "response")
NO_ANSWER = {"proof", "notfound", "none", "na", "n/a", "unknown"}
"""What data sets write for problems without a single answer (spaces removed, lower case)."""


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


# ---- reading ----------------------------------------------------------------------------------------------------


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
    worked = _text(row[solution]) if solution is not None else ""
    final = _text(row[answer]) if answer is not None else ""
    if answer is None or reward.extract_answer(final) is not None:  # a solution in the answer's place, as in GSM8K
        worked = worked or final
        final = reward.extract_answer(final or worked) or ""
    return Problem(_text(row[question]), final, (worked,) if worked else ())


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
        raise DataError(f"{source!r}: expected one of {', '.join([*hub])}, or a file ending in {', '.join(FILES)}")
    return (to_problem(row, columns, where) for where, row in rows)


# ---- cleaning ---------------------------------------------------------------------------------------------------


def deduplicate(
    problems: Iterable[Problem], excluded: Mapping[str, set[str]], counts: Counts
) -> dict[str, Problem]:
    """Questions by their key, each once and none of the benchmarks'; solutions of duplicates are kept as references.

    Of a question that has two different answers nothing is kept: one of them is wrong.
    """
    kept: dict[str, Problem] = {}
    contradicted: set[str] = set()
    for problem in problems:
        counts.read += 1
        key = question_key(problem.question)
        reason = _why_not(problem, key, excluded)
        if reason is not None:
            counts.dropped[reason] += 1
        elif key not in kept:
            kept[key] = problem
        else:
            counts.dropped["duplicate question"] += 1
            kept[key] = _merged(kept[key], problem)
            if reward.normalise(problem.answer) != reward.normalise(kept[key].answer):
                contradicted.add(key)
    counts.dropped["question with different answers"] += len(contradicted)
    return {key: problem for key, problem in kept.items() if key not in contradicted}


def _why_not(problem: Problem, key: str, excluded: Mapping[str, set[str]]) -> str | None:
    if not key:
        return "no question"
    if not problem.answer or re.sub(r"\s|\\text|[{}]", "", problem.answer).lower() in NO_ANSWER:
        return "no single answer"
    return next((f"also in {name}" for name, keys in excluded.items() if key in keys), None)


def _merged(first: Problem, second: Problem) -> Problem:
    return Problem(first.question, first.answer, tuple(dict.fromkeys(first.references + second.references)))


def drop_unparsable(problems: Mapping[str, Problem], counts: Counts, threads: int) -> dict[str, Problem]:
    """Those whose answer math-verify can read."""
    from tqdm import tqdm

    with ThreadPoolExecutor(max_workers=threads) as executor:
        checks = executor.map(lambda problem: reward.is_parsable(problem.answer), problems.values())
        bar = tqdm(checks, total=len(problems), desc="answers read", disable=None, mininterval=1.0)
        readable = list(bar)
    counts.dropped["answer that math-verify cannot read"] += len(problems) - sum(readable)
    return {key: problem for (key, problem), fine in zip(problems.items(), readable, strict=True) if fine}


# ---- writing ----------------------------------------------------------------------------------------------------


def make_row(problem: Problem, index: int, split: str, data_source: str, instruction: str) -> dict[str, Any]:
    """One problem as a row of verl's data set."""
    content = f"{problem.question}\n\n{instruction}" if instruction else problem.question
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "index": index,
            "split": split,
            "question": problem.question,
            "solution": problem.references[0] if problem.references else "",
            "references": list(problem.references),
        },
    }


def reasoning_gym_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The demo's tasks, scored by rredcot_plugin/demo/reward.py and not by the reward of this recipe."""
    try:
        from rredcot_plugin.demo.prepare_data import make_rows
        from rredcot_plugin.demo.tasks import TASKS
    except ImportError as error:
        raise DataError(f"--source reasoning-gym: needs `pip install 'rredcot[demo]'` ({error})") from error
    sizes = {"train": (arguments.max_rows or 640) - arguments.val_size, "val": arguments.val_size}
    if sizes["train"] < 1:
        raise DataError(
            f"--val-size {arguments.val_size}: leaves nothing of --max-rows {arguments.max_rows or 640}"
        )
    return {
        split: make_rows(split, size, arguments.seed, sorted(TASKS))  # type: ignore[arg-type]
        for split, size in sizes.items()
    }


def math_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train, val and benchmark rows; prints what was dropped."""
    columns = Columns(arguments.question_column, arguments.answer_column, arguments.solution_column)
    benchmarks = {name: list(read_problems(name, Columns(), BENCHMARKS)) for name in benchmarks_of(arguments)}
    excluded = {name: {question_key(p.question) for p in problems} for name, problems in benchmarks.items()}
    counts = Counts()
    problems = deduplicate(read_problems(arguments.source, columns, SOURCES), excluded, counts)
    problems = preselect(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    problems = drop_unparsable(problems, counts, arguments.workers)
    splits = split_and_cut(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    print(f"{arguments.source}: {counts}")
    name, text = data_source_of(arguments.source), arguments.instruction
    files = {split: [make_row(p, i, split, name, text) for i, p in enumerate(splits[split])] for split in SPLITS}
    for benchmark in arguments.eval:
        source = data_source_of(benchmark)
        rows = enumerate(benchmarks[benchmark])
        files[source] = [make_row(p, i, "test", source, text) for i, p in rows if p.answer]
    return files


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(
        description="Mathematical problems as train.parquet and val.parquet in verl's data format.",
        epilog=f"Known benchmarks for --exclude and --eval: {', '.join(BENCHMARKS)}.",
    )
    add_arguments(parser, f"{', '.join(SOURCES)}, reasoning-gym", INSTRUCTION)
    add = parser.add_argument
    add("--question-column", metavar="NAME", help=f"default: the first of {', '.join(QUESTION_COLUMNS)}")
    add("--answer-column", metavar="NAME", help=f"default: the first of {', '.join(ANSWER_COLUMNS)}")
    add("--solution-column", metavar="NAME", help=f"default: the first of {', '.join(SOLUTION_COLUMNS)}")
    add("--workers", type=int, default=reward.WORKERS, metavar="N", help="processes that read answers")
    return checked_arguments(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when the files are written, 1 when something is wrong with arguments or source."""
    arguments = parse_arguments(argv)
    try:
        check_free(arguments.out, arguments.eval, arguments.force)
        reward.WORKERS = arguments.workers
        is_gym = arguments.source == "reasoning-gym"
        files = reasoning_gym_rows(arguments) if is_gym else math_rows(arguments)
        write_files(arguments.out, files, None if is_gym else SCHEMA)
    except (DataError, ImportError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
