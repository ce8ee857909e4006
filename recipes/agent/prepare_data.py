r"""Write train.parquet and val.parquet for agents with a tool, in verl's data format.

    python prepare_data.py --source word-problems --out data/word_problems --max-rows 576 --val-size 64   # offline
    python prepare_data.py --source numina --out data/numina --val-size 256 --eval aime24 --eval math500

`word-problems` are those of the tiny tool user (word_problems.py), with the same question never in both files. Everything
else (gsm8k, numina, a .jsonl, .json, .parquet or .csv file, ...) is read, cleaned and written by ../math/prepare_data.py, with
an instruction that mentions the tool; `python ../math/prepare_data.py --help` lists its options.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
from data_files import DataError, add_arguments, check_free, checked_arguments, split_and_cut, write_files
from word_problems import Problem, generate

HERE = Path(__file__).resolve().parent
WORD_PROBLEMS = "word-problems"
ROWS = 576
INSTRUCTION = (
    "Let's think step by step. You may run Python with the tool, several times if need be; print what you want to see."
    " Put the final answer within \\boxed{}."
)


def make_row(problem: Problem, index: int, split: str) -> dict[str, Any]:
    """One problem as a row of verl's data set; the solution is the answer's line, which no tool is needed to say."""
    solution = f"#### {problem.answer}"
    return {
        "data_source": "word_problems",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "index": index,
            "split": split,
            "question": problem.question,
            "solution": solution,
            "references": [],
        },
    }


def word_problem_rows(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train and val rows. The held-out questions are those with the smallest hashes among the seed's."""
    if arguments.exclude or arguments.eval:
        raise DataError(
            f"--exclude, --eval: {WORD_PROBLEMS} are generated here, so there is nothing to exclude; leave both out"
        )
    rows = arguments.max_rows or ROWS
    problems: dict[str, Problem] = {}
    for problem in generate(4 * rows, arguments.seed):
        problems.setdefault(problem.question, problem)
        if len(problems) == rows:
            break
    splits = split_and_cut(problems, arguments.val_size, arguments.max_rows, arguments.seed)
    return {split: [make_row(p, i, split) for i, p in enumerate(kept)] for split, kept in splits.items()}


def math_main(argv: Sequence[str]) -> int:
    """../math/prepare_data.py (or math/ beside this file), as it would be run, with this recipe's instruction."""
    path = next(
        (path for folder in (HERE.parent, HERE) if (path := folder / "math/prepare_data.py").is_file()), None
    )
    if path is None:
        raise DataError(f"{HERE / 'math'}: not found; put the files of recipes/math into math/ beside this one")
    main = runpy.run_path(str(path))["main"]
    return int(main(["--instruction", INSTRUCTION, *argv]))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when the files are written, 1 when something is wrong with arguments or source."""
    given = list(sys.argv[1:] if argv is None else argv)
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("--source", default=WORD_PROBLEMS)
    try:
        if choice.parse_known_args(given)[0].source != WORD_PROBLEMS:
            return math_main(given)
        parser = argparse.ArgumentParser(description="Word problems as train.parquet and val.parquet.")
        add_arguments(parser, f"{WORD_PROBLEMS}, or what ../math/prepare_data.py accepts", "")
        parser.set_defaults(workers=1)
        arguments = checked_arguments(parser, given)
        check_free(arguments.out, arguments.eval, arguments.force)
        write_files(arguments.out, word_problem_rows(arguments))
    except DataError as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
