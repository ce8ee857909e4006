"""`rredcot score` says which rows of a file earn or ask nothing, leaves out those that cannot be read, and writes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rredcot_plugin.offline.output import Output, OutputExistsError
from tests.unit.scored import RAW, plain_rows, raw, records, rollouts, score, write  # noqa: F401  fixtures


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


@pytest.mark.parametrize("step", [-1, 10**20, 1.5, True])
def test_a_step_that_no_report_reads_is_a_broken_line(tmp_path: Path, step: Any) -> None:
    """The command reads its own output at its end, when all has been scored."""
    rows = plain_rows()
    rows[2]["step"] = step
    result = score(write(tmp_path / "r.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1 and len(records(tmp_path / "o.jsonl")) == len(rows) - 1
    assert "line 3: left out: step: expected an integer from 0" in result.stderr


def test_an_integer_step_may_be_written_as_a_float(tmp_path: Path) -> None:
    """As pandas writes a column with gaps."""
    rows = [{**row, "step": 3.0} for row in plain_rows()]
    result = score(write(tmp_path / "r.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 0, result.output
    assert {record["step"] for record in records(tmp_path / "o.jsonl")} == {3}


def test_earlier_outputs_of_a_session_are_told(tmp_path: Path) -> None:
    rows = [
        {"input": "1 + 1 =", "output": f"{i} + 1\n#### {i}", "score": i, "uid": f"u_{i // 2}_{i % 2}"}
        for i in range(4)
    ]
    result = score(write(tmp_path / "rows.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 0, result.output
    told = "2 earlier outputs of a session are left out: only its last one is scored here, while training gives"
    assert told in " ".join(result.stderr.split())
    assert [record["line"] for record in records(tmp_path / "o.jsonl")] == [2, 4]


def test_what_changes_no_number_may_differ_from_run_to_run(rollouts: Path, raw: Path) -> None:
    result = score(rollouts, "-o", str(raw), *RAW, "--batch-tokens", "512", "--device", "cpu")
    assert result.exit_code == 0 and "nothing was left to score" in result.stdout


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_two_runs_do_not_write_to_one_output(tmp_path: Path, force: tuple[str, ...]) -> None:
    rows, out = write(tmp_path / "rows.jsonl", plain_rows()), tmp_path / "o.jsonl"
    with Output.open(out, {}) as held:
        held.append([{"a": 1}], {}, [])
        result = score(rows, "-o", str(out), *RAW, *force)
        assert result.exit_code == 2
        assert f"{out}: another rredcot score is writing to it; wait" in result.stderr and "--out" in result.stderr
        held.append([{"a": 2}], {}, [])
    assert records(out) == [{"a": 1}, {"a": 2}]
    with pytest.raises(OutputExistsError, match="made with other arguments"):
        Output.open(out, {"b": 1})
    with Output.open(out, {}) as again:
        assert again.state.chunks == 2


@pytest.mark.parametrize("change", ["longer", "shorter", "gone"])
def test_an_output_that_somebody_else_changed_is_not_gone_on_with(tmp_path: Path, change: str) -> None:
    out = tmp_path / "o.jsonl"
    with Output.open(out, {}) as output:
        output.append([{"a": 1}], {}, [])
        before = out.read_bytes()
        after = {"longer": before + before, "shorter": b"", "gone": b""}[change]
        out.write_bytes(after)
        if change == "gone":
            out.unlink()
        with pytest.raises(ValueError, match=rf"out={out}: expected the {len(before)} bytes .*, got (no|\d+): "):
            output.append([{"a": 2}], {}, [])
    assert not out.exists() or out.read_bytes() == after
