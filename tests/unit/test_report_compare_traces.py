"""Which traces of two runs stand beside each other where there are more than a page holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rredcot_plugin.report.compare import Comparison, compare_runs
from rredcot_plugin.report.compare_page import render_comparison
from tests.unit.report_runs import trace, write
from tests.unit.test_report_terminal import Elements

PROMPTS, ROLLOUTS = 12, 8


def run_of(file: Path, worst: int) -> Path:
    """Half of each group is right; the group of prompt ``worst`` has the worst segment, and names of groups are the file's own."""
    lines = []
    for i in range(PROMPTS):
        for j in range(ROLLOUTS):
            credits = [0.2 * j, (1.0 if j % 2 else -0.5 - (i == worst)) - 0.2 * j]
            text = f"{file.stem} {i}.{j} " + "x" * 2000
            lines.append(trace(credits, uid=f"{file.stem}{i}", text=text, prompt=f"{i} ="))
    write(file, *lines)
    return file


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    return {name: run_of(tmp_path / f"{name}.jsonl", worst) for name, worst in (("a", 1), ("b", 9))}


def rewards(found: Comparison) -> list[set[bool]]:
    return [{one.reward > 0 for one in group.traces} for pair in found.pairs for group in pair]


def test_right_and_wrong_traces_stand_together(runs: dict[str, Path]) -> None:
    found = compare_runs(runs)
    assert len(found.pairs) == PROMPTS
    assert rewards(found) == [{True, False}] * 2 * PROMPTS
    assert {len(group.traces) for pair in found.pairs for group in pair} == {3}


@pytest.mark.parametrize("bound", [{"max_bytes": 80_000}, {"max_traces": 20}])
def test_runs_agree_on_the_prompts_that_there_is_room_for(runs: dict[str, Path], bound: dict[str, int]) -> None:
    found = compare_runs(runs, **bound)
    assert len(found.pairs) >= 3 and found.shared == PROMPTS


def test_no_room_at_all_is_said(runs: dict[str, Path]) -> None:
    page = Elements(render_comparison(compare_runs(runs, max_bytes=100)))
    assert f"None of the {PROMPTS} shared prompts fits into --max-traces and --max-mb" in page.text
    assert "no prompt in common" not in page.text
