"""Rows of a small source for the code recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from tests.unit.recipe_scripts import code_preparation


@pytest.fixture(scope="module")
def prepare_data() -> Iterator[ModuleType]:
    with code_preparation() as module:
        yield module


def task(name: str, text: str, *, code: str | None = None) -> dict[str, Any]:
    return {
        "question": text,
        "tests": f"assert {name}(2) == 4\nassert {name}(3) == 6\n",
        "solution": f"def {name}(x):\n    return 2 * x\n" if code is None else code,
    }


ROWS = [
    task("twice", "Double `x`."),
    task("twice", "double x .", code="def twice(x):\n    return x + x\n"),
    task("wrong", "The solution is wrong", code="def wrong(x):\n    return x\n"),
    task("endless", "The solution does not end", code="def endless(x):\n    while True:\n        pass\n"),
    task("free", "No solution is given", code=""),
    task("no", ""),
    task("broken", "The tests are broken") | {"tests": "assert ("},
    task("nothing", "Nothing is asserted") | {"tests": "nothing(2)"},
    task("who", "Nobody says who is checked") | {"tests": "def check(candidate):\n    assert candidate(1)"},
    task("known", "In the benchmark"),
    *(task(f"twice_{i}", f"Double x, in variant {i}") for i in range(10)),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "My Tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "bench.csv").write_text('prompt,test\nin the  benchmark,"assert known(2) == 4"\n')
    return path


def rows_of(file: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(file).to_dict("records")


def questions(file: Path) -> list[str]:
    return [row["extra_info"]["question"] for row in rows_of(file)]


def prepare(module: ModuleType, source: Path | str, out: Path, *more: str) -> int:
    return module.main(["--source", str(source), "--out", str(out), "--val-size", "4", *more])


UNCHECKED = "--no-check-solutions"
