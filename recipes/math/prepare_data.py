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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
import reward
from data_files import (
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
    split_and_cut,
    write_files,
)
from math_problems import (
    ANSWER_COLUMNS,
    BENCHMARKS,
    QUESTION_COLUMNS,
    SOLUTION_COLUMNS,
    SOURCES,
    Columns,
    Problem,
    question_key,
    read_problems,
)

INSTRUCTION = "Let's think step by step and put the final answer within \\boxed{}."
NO_ANSWER = {"proof", "notfound", "none", "na", "n/a", "unknown"}
"""What data sets write for problems without a single answer (spaces removed, lower case)."""


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
