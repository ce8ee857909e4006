"""`rredcot filter` of several files and folders: groups of one file each, and files without a scored rollout among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_filter import record, run


def write(path: Path, reward: float, prompts: int = 2) -> Path:
    """Scored rollouts of the same prompts, and so of the same uids, in every file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record(f"prompt {i}", [0.5, 0.6], reward, text=f"{i}.{j}") for i in range(prompts) for j in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_groups_of_two_runs_on_the_same_prompts_stay_apart(tmp_path: Path) -> None:
    right, wrong = write(tmp_path / "right.jsonl", 1.0), write(tmp_path / "wrong.jsonl", 0.0)
    for condition, kept in (("always-solved", 6), ("group_size == 3", 12), ("group_reward == 0.5", 0)):
        assert f"{kept} of 12" in run(right, wrong, "--where", condition).stdout, condition


def test_what_stands_beside_its_scored_file_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "run.scored.jsonl", 1.0)
    (tmp_path / "run.jsonl").write_text('{"prompt": "a", "response": "b", "reward": 1}\n')
    done = run(tmp_path, "--where", "reward > 0")
    assert done.exit_code == 0 and "6 of 6" in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "line 1: left out: expected JSON lines, got an empty file"),
        ('{"a": 1}\n', "left out: no scored rollout"),
    ],
)
def test_a_file_of_a_folder_without_any_is_told_and_the_rest_goes_on(
    tmp_path: Path, content: str, told: str
) -> None:
    write(tmp_path / "runs" / "1.jsonl", 1.0)
    (tmp_path / "runs" / "2.jsonl").write_text(content)
    done = run(tmp_path / "runs", "--where", "reward > 0", "-o", tmp_path / "kept.jsonl")
    assert done.exit_code == 1 and "2.jsonl, " + told.partition("left")[0] in done.stderr and told in done.stderr
    assert "6 of 6" in done.stdout and len((tmp_path / "kept.jsonl").read_text().splitlines()) == 6
    named = run(tmp_path / "runs" / "2.jsonl", "--where", "reward > 0")
    assert named.exit_code == 1 and "left out" not in named.stderr and "kept" not in named.stdout


def test_a_folder_of_nothing_else_says_why(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"prompt": "a", "response": "b", "reward": 1}\n')
    done = run(tmp_path, "--where", "reward > 0")
    assert done.exit_code == 1 and "run rredcot score on the file first" in done.stderr
