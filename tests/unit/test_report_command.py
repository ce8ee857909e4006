"""`rredcot report`: pages in one move, nothing overwritten, broken lines told, model text never obeyed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.report_runs import (
    ATTACK,
    dumps,  # noqa: F401  fixtures
    run,
    trace,
    write,
)


def test_a_page_is_written_and_what_it_shows_is_told(dumps: Path) -> None:
    result = run(dumps)
    assert result.exit_code == 0, result.output
    assert "4 of 4 traces are shown, of 2 of 2 groups" in result.stdout
    assert result.stdout.splitlines()[-1] == "report.html"
    page = Path("report.html").read_text("utf-8")
    assert "worst 1" in page
    assert "rredcot report" in page
    assert not list(Path().glob("*.part"))


@pytest.mark.parametrize("here", [".", "./"])
def test_the_present_folder_is_a_folder_like_others(
    dumps: Path, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    assert run(dumps, "-o", page).exit_code == 0
    expected = page.read_text("utf-8")
    monkeypatch.chdir(dumps)
    result = run(here, "-o", page, "--force")
    assert result.exit_code == 0, result.stderr
    assert page.read_text("utf-8").replace(">.<", f">{dumps}<") == expected
    result = run(here, "--terminal")
    assert result.exit_code == 0 and "4 traces in 2 groups" in result.stdout, result.output


def test_nothing_is_overwritten_without_force(dumps: Path) -> None:
    page = Path("report.html")
    page.write_text("mine")
    result = run(dumps)
    assert result.exit_code == 2
    assert "in the way" in result.stderr
    assert page.read_text() == "mine"
    assert run(dumps, "--force", "--title", "Other <title>").exit_code == 0
    assert "Other &lt;title&gt;" in page.read_text("utf-8")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_is_no_page(dumps: Path, tmp_path: Path, force: list[str]) -> None:
    (tmp_path / "d").mkdir()
    result = run(dumps, "-o", "d", *force)
    assert result.exit_code == 2
    assert "out=d: expected a file to write to, got a folder" in result.stderr
    assert "--force" not in result.stderr


def test_rollouts_are_never_overwritten(dumps: Path) -> None:
    before = (dumps / "1.jsonl").read_bytes()
    for out in (dumps / "1.jsonl", dumps):
        assert run(dumps / "1.jsonl", "-o", out, "--force").exit_code == 2
    assert run(dumps, "-o", dumps / "1.jsonl", "--force").exit_code == 2
    assert (dumps / "1.jsonl").read_bytes() == before


def test_a_page_that_fails_leaves_the_old_one(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path("report.html")
    page.write_text("mine")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("os.replace", full)
    result = run(dumps, "--force")
    assert result.exit_code == 1
    told = "out=report.html: cannot be written: No space left on device; use another place with --out"
    assert told in result.stderr
    assert page.read_text() == "mine"
    assert not list(Path().glob("*.part"))


def test_broken_lines_are_told_and_the_page_is_written(dumps: Path) -> None:
    write(dumps / "3.jsonl", trace([0.5], step=3), '{"step": 3, "ui', *["[]"] * 7, f'["{ATTACK}"]')
    result = run(dumps)
    assert result.exit_code == 1
    assert re.search(r"3\.jsonl, line 2: left out: no complete JSON: .* is the file truncated\?", result.stderr)
    assert result.stderr.count("left out: ") == 5
    assert "and 4 more lines were left out" in result.stderr
    assert "line 2" not in result.stdout
    page = Path("report.html").read_text("utf-8")
    assert "is the file truncated?" in page


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothere"], 1, "nothere: no such file or folder"),
        (["empty"], 1, "empty: no rollouts here, expected files called *.jsonl"),
        (["broken.jsonl"], 1, "broken.jsonl, line 1: missing columns"),
        (
            ["credit", "--step", "7"],
            1,
            "steps: expected steps that the files have, got none of their traces; they have 1-2",
        ),
        (
            ["--compare", "credit/1.jsonl", "credit/2.jsonl", "--step", "2"],
            1,
            "credit/1.jsonl has 1; credit/2.jsonl has 2",
        ),
        (["credit", "--every", "3"], 2, "every=3: has no effect without --watch; give --watch as well"),
        (["credit", "--step", "7-2"], 2, "step=7-2: expected a step such as 40"),
        (["credit", "--step", "x"], 2, "step=x: expected a step such as 40"),
        (["credit", "--max-traces", "0"], 2, "max-traces"),
        (["credit", "--tensorboard", "empty"], 1, "empty: no tensorboard event files"),
        (["credit", "--tensorboard", "a=empty", "--tensorboard", "a=empty"], 2, "there is a run 'a' already"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors_in_one_line(dumps: Path, arguments: list[str], code: int, message: str) -> None:
    Path("empty").mkdir()
    write(Path("broken.jsonl"), {"a\x1b[2J": 1})
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    assert not Path("report.html").exists()


def test_without_an_extra_the_way_out_is_told(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.commands.report.find_spec", lambda name: None)
    result = run(dumps, "--tensorboard", dumps)
    assert result.exit_code == 2
    assert "pip install 'rredcot[report]'" in result.stderr
    assert run(dumps).exit_code == 0
