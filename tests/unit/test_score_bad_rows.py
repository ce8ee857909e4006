"""`rredcot score` says which rows of a file earn or ask nothing, and leaves out those that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.scored import RAW, plain_rows, score, write


def test_rewards_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    rows = plain_rows()
    rows[1]["reward"] = rows[4]["reward"] = float("nan")
    result = score(write(tmp_path / "rows.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert f"2 of {len(rows)} rewards are NaN or infinite (lines 2, 5): these rollouts get no credit" in said


def test_a_run_in_which_nothing_was_probed_says_so(tmp_path: Path) -> None:
    options = ["-o", str(tmp_path / "o.jsonl"), *RAW, "--set", "value_estimator=reference"]
    result = score(write(tmp_path / "rows.jsonl", plain_rows()), *options)
    assert "no trace had an answer to probe" in " ".join(result.output.split())


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": 3}])
def test_a_message_without_content_is_left_out(tmp_path: Path, content: dict[str, Any]) -> None:
    rows = plain_rows()
    rows[2]["prompt"] = [{"role": "user", **content}]
    result = score(write(tmp_path / "rows.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1
    assert "line 3: left out: prompt: expected a text or a list of messages" in " ".join(result.output.split())
