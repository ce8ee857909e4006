"""Write the demo's train.parquet and val.parquet in verl's data format.

    python -m rredcot_plugin.demo.prepare_data OUT_DIR --train-size 512 --val-size 128 --seed 0

Training and validation questions never overlap, for any pair of seeds (see `tasks.split_of`). The tasks take
turns, so that every stretch of the file holds all of them in equal shares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rredcot_plugin.demo.tasks import TASKS, Problem, Split, generate, get_task, solve

DATA_SOURCE_PREFIX = "rredcot_demo"


def make_row(problem: Problem, index: int, split: Split) -> dict[str, Any]:
    """One problem as a row of verl's data set; `extra_info.solution` is a right worked solution."""
    return {
        "data_source": f"{DATA_SOURCE_PREFIX}/{problem.task}",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "index": index,
            "split": split,
            "task": problem.task,
            "question": problem.question,
            "solution": solve(problem).text,
        },
    }


def make_rows(split: Split, size: int, seed: int, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """`size` rows in which the tasks take turns; ValueError for an empty or unknown task list."""
    if not tasks:
        raise ValueError(f"tasks: got none, expected some of {sorted(TASKS)}")
    per_task = [generate(task, split, len(range(turn, size, len(tasks))), seed) for turn, task in enumerate(tasks)]
    return [make_row(per_task[i % len(tasks)][i // len(tasks)], i, split) for i in range(size)]


def checksum(rows: list[dict[str, Any]]) -> str:
    """SHA-256 of the rows' content (not of the parquet file, whose bytes depend on the writer's version)."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def write_split(out_dir: Path, split: Split, size: int, seed: int, tasks: Sequence[str]) -> Path:
    """Write `<split>.parquet` and print its counts and checksum."""
    rows = make_rows(split, size, seed, tasks)
    path = out_dir / f"{split}.parquet"
    pd.DataFrame(rows).to_parquet(path, index=False)
    counts = ", ".join(f"{task} {n}" for task, n in sorted(Counter(r["extra_info"]["task"] for r in rows).items()))
    print(f"{path}: {len(rows)} rows ({counts}), sha256 {checksum(rows)}")
    return path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rredcot_plugin.demo.prepare_data",
        description="Write train.parquet and val.parquet with reasoning-gym problems in verl's data format.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="folder to write to, made if absent")
    parser.add_argument("--train-size", type=int, default=512, help="number of training rows (at least 1)")
    parser.add_argument("--val-size", type=int, default=128, help="number of validation rows (at least 1)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same data")
    parser.add_argument(
        "--tasks", nargs="+", default=sorted(TASKS), choices=sorted(TASKS), help="problem families"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: see `--help`."""
    arguments = parse_arguments(argv)
    for task in arguments.tasks:
        get_task(task)
    arguments.out_dir.mkdir(parents=True, exist_ok=True)
    write_split(arguments.out_dir, "train", arguments.train_size, arguments.seed, arguments.tasks)
    write_split(arguments.out_dir, "val", arguments.val_size, arguments.seed, arguments.tasks)


if __name__ == "__main__":
    main()
