"""What segments add: the page has what the committed results say, and one baseline per trace is its own unit."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import by_success
import curve_figures
import gradient
import page_figures
import segments_add
import shapes
from grads.drawing import ON_THE_PAGE
from grads.moments import Moments
from quick_checks.committed import Committed

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_rows_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    segments_add.main()
    rows = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "evidence" / "gradient.md").read_text("utf-8").splitlines()
    assert len(rows) == 13 and not [row for row in rows if row not in page]


def test_the_page_has_the_rows_of_prompts_of_any_success(capsys: pytest.CaptureFixture[str]) -> None:
    by_success.main()
    rows = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "evidence" / "gradient.md").read_text("utf-8").splitlines()
    assert len(rows) == 7 and not [row for row in rows if row not in page]


def test_results_by_success_took_the_prompts_that_they_name() -> None:
    committed = Committed(ROOT / "benchmarks" / "results")
    for name, result in by_success.RESULTS.items():
        record = committed.record(result)
        assert record is not None
        sizes = record["settings"]["sizes"]
        asked = "any" if (sizes["low"], sizes["high"]) == (0, 1) else f"{sizes['low']:.0%} {sizes['high']:.0%}"
        assert name == asked.replace("% ", " to ").replace("%", " %") and sizes["pool"] == 0
        for task in page_figures.SOLVED:
            accuracy = record["summary"][f"{task}/accuracy"]["value"]
            assert sizes["low"] <= accuracy <= sizes["high"]
            for credit in page_figures.OF_SUCCESS:
                drawn = result in page_figures.ON_TWO.get(credit, by_success.RESULTS.values())
                assert (f"{task}/snr_vs_grpo/{credit}" in record["summary"]) == drawn


def test_the_picture_of_credit_draws_what_was_measured() -> None:
    record = Committed(ROOT / "benchmarks" / "results").record("gradient")
    assert record is not None
    measured = record["summary"]
    assert {f"{task}/snr_vs_grpo/{name}" for task in ("sums", "sorting") for name in ON_THE_PAGE} <= set(measured)


def test_one_baseline_per_trace_is_the_unit() -> None:
    committed = Committed(ROOT / "benchmarks" / "results")
    for task, name in segments_add.RESULTS.items():
        record = committed.record(name)
        assert record is not None
        entry = record["summary"][f"{task}/snr_vs_trace/{gradient.TRACE}"]
        assert entry == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_both_units_are_taken_draw_by_draw() -> None:
    """Noise that a draw has in common leaves the quotient."""
    shared = np.linspace(0.5, 2.0, 9)

    def with_signal(signal: float) -> list[Moments]:
        return [Moments(square=x, along=x, along_square=signal * x, reference=1.0, trace=1.0) for x in shared]

    found = gradient.measured(with_signal(3.0), with_signal(1.0), with_signal(2.0))
    assert found["snr_vs_grpo"] == pytest.approx({"value": 3.0, "low": 3.0, "high": 3.0})
    assert found["snr_vs_trace"] == pytest.approx({"value": 1.5, "low": 1.5, "high": 1.5})


def test_the_page_has_the_rows_of_every_shape_of_a_step() -> None:
    study = shapes.TINY
    found = shapes.found_curves(study)
    page = (ROOT / "docs" / "evidence" / "learning.md").read_text("utf-8").splitlines()
    rows = shapes.table(study, found).splitlines()
    assert len(rows) == 2 + len(shapes.SYSTEMS) and not [row for row in rows if row not in page]
    assert set(curve_figures.SHAPES) <= set(found)
    text = " ".join(page).replace("−", "-")
    of_groups, shares = (_against_groups(one) for one in (study, shapes.SHARES))
    of_default = of_groups["16 × 1 rredcot"] + shares["16 × 1 rredcot"]
    numbers = re.findall(r"-?\d\.\d+ \[[^]]+\]", of_default + of_groups["16 × 1 grpo"].partition("; ")[0])
    assert len(numbers) == 11 and not [number for number in numbers if number not in text]
    assert shares["16 × 1 grpo"].endswith("-0.286 [-0.356, -0.216]") and "0.286 [0.216, 0.356] below" in text


def test_the_page_has_the_shapes_of_the_language_model() -> None:
    study = shapes.LANGUAGE_MODEL
    found = shapes.found_curves(study)
    alone = {("16 × 1", system) for system in ("grpo", "rredcot", "low_variance")}
    assert set(found) == {("4 × 4", "grpo"), ("4 × 4", "low_variance")} | alone
    assert len({weights for own in found.values() for weights in own["words"].weights}) == 1
    page = (ROOT / "docs" / "evidence" / "language-model.md").read_text("utf-8").replace("−", "-")
    of_groups = [line.partition("; ")[2] for line in _against_groups(study).values()][1:]
    gaps = shapes.gains(study, found, "16 × 1").splitlines()
    numbers = of_groups + [line.partition("; ")[2] for line in gaps if line.startswith(("16 × 1 r", "16 × 1 l"))]
    assert len(numbers) == 6 and not [number for number in numbers if number not in page]
    readme = (ROOT / "README.md").read_text("utf-8").replace("−", "-")
    assert _against_groups(study)["16 × 1 rredcot"].partition("; ")[2] in readme


def test_the_page_has_the_second_task_of_the_language_model() -> None:
    """Where it begins, and what it ends above GRPO with 4 × 4."""
    study = shapes.TOTALS
    found = shapes.found_curves(study)
    assert set(found) == {(shape, system) for shape in ("4 × 4", "16 × 1") for system in ("grpo", "rredcot")}
    assert all(own["totals"].seeds.tolist() == [0, 1, 2, 3, 4] for own in found.values())
    assert {f"{own['totals'].evals['accuracy'][:, 0].mean():.2f}" for own in found.values()} == {"0.33"}
    assert f"{found['4 × 4', 'grpo']['totals'].final('accuracy').mean():.2f}" == "0.39"
    page = (ROOT / "docs" / "evidence" / "language-model.md").read_text("utf-8").replace("−", "-")
    gained = _against_groups(study)
    steps, gap = gained["16 × 1 rredcot"].split("; ")
    assert gap in page and gained["16 × 1 grpo"].split("; ")[1] in page
    assert steps in page and gained["4 × 4 rredcot"].split("; ")[1] in page
    rloo = json.loads((shapes.FOLDER / "learning_lm_totals_4.json").read_text("utf-8"))["summary"][
        "totals/rloo/final_minus_grpo"
    ]
    assert f"{rloo['value']:.3f} [{rloo['low']:.3f}, {rloo['high']:.3f}]" in page


def _against_groups(study: shapes.Study) -> dict[str, str]:
    """Steps and gaps against GRPO with 4 × 4, by shape and system."""
    lines = shapes.gains(study, shapes.found_curves(study), "4 × 4").splitlines()[1:]
    return {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}


def test_the_table_of_the_readme_is_what_was_measured() -> None:
    rows = [
        line.split(" | ")[1:]
        for line in (ROOT / "README.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and "16 × 1" in line
    ]
    groups, shares = (_against_groups(study) for study in (shapes.TINY, shapes.SHARES))
    assert len(rows) == 4
    for cells, system in zip(rows, ("rredcot", "lean", "grpo", "reinforce_plus_plus"), strict=True):
        own, alone = groups[f"16 × 1 {system}"], shares[f"16 × 1 {system}"]
        steps = re.findall(r"> \d[^]]+\]|\d[^]]+\]", own.partition("; ")[0])
        assert [cell.strip(" |") for cell in cells[:3]] == [
            step.replace(", > 1.00]", ", or never]") for step in steps
        ]
        if not alone.startswith("> "):
            assert cells[3].strip(" |") == alone.partition("; ")[0]
    assert rows[2][3].startswith("never: ends 0.286 [0.216, 0.356] lower")
    assert shares["16 × 1 grpo"].endswith("-0.286 [-0.356, -0.216]")


def test_the_page_has_signals_of_shapes() -> None:
    committed = Committed(ROOT / "benchmarks" / "results")
    page = (ROOT / "docs" / "evidence" / "gradient.md").read_text("utf-8")
    for name in page_figures.SIGNAL_SHAPES:
        for task, result in page_figures.SIGNAL_TASKS.items():
            record = committed.record(result)
            assert record is not None and f"{task}/snr_vs_grpo_4x4/{name}" in record["summary"]
    for task in page_figures.SIGNAL_TASKS:
        assert f"`{task}`" in page
