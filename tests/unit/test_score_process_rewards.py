"""``rredcot score`` with rewards on single lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.scored import RAW, plain_rows, records, score, write


def test_process_rewards_are_credited_where_they_were_earned(tmp_path: Path) -> None:
    """Every trace of several lines is paid a quarter more for its first one, and so its first segment is, in its reward."""
    rows = [row for row in plain_rows() if "\n" in row["response"]]
    paid = []
    for number, row in enumerate(rows):
        told = [[row["response"].index("\n"), 0.25]]
        more = {"reward": row["reward"] + 0.25, "process_rewards": told if number % 2 else json.dumps(told)}
        paid.append({**row, **more})
    broken = {**paid[0], "process_rewards": [["first", 0.25]]}
    result = score(write(tmp_path / "paid.jsonl", [*paid, broken]), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1
    assert "line 10: left out: process_rewards: expected pairs of a character and a number" in result.stderr
    assert score(write(tmp_path / "plain.jsonl", rows), "-o", str(tmp_path / "p.jsonl"), *RAW).exit_code == 0
    for own, plain in zip(records(tmp_path / "o.jsonl"), records(tmp_path / "p.jsonl"), strict=True):
        assert own["reward"] == plain["reward"] + 0.25
        first, *later = [part["reward"] for part in own["segments"]]
        known, *others = [part["reward"] for part in plain["segments"]]
        assert first == pytest.approx(known + 0.25, abs=1e-3) and later == pytest.approx(others, abs=1e-3)
