"""What perfect values would give: the page has what the committed results say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ceilings
import curve_figures
import shapes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "learning.md").read_text("utf-8").replace("−", "-")


@pytest.fixture(scope="module")
def found() -> shapes.Found:
    return shapes.found_curves(ceilings.STUDY)


def test_the_page_has_the_rows_and_the_intervals_that_it_cites(found: shapes.Found) -> None:
    rows, page = ceilings.table(found).splitlines(), PAGE.splitlines()
    assert len(rows) == 6 and not [row for row in rows if row not in page]
    assert set(curve_figures.CEILING_CURVES) <= set(found)
    section = PAGE.partition("## What perfect values would give")[2].partition("\n## ")[0]
    cited = re.findall(r"-?\d\.\d+ \[[^]]+\]", section)
    printed = ceilings.intervals(found)
    assert len(cited) == 4 and not [number for number in cited if number not in printed]


def test_all_runs_began_with_the_same_model_and_validated_greedily(found: shapes.Found) -> None:
    for own in found.values():
        for curves in own.values():
            assert curves.seeds.tolist() == [0, 1, 2, 3, 4] and curves.evals["greedy"].shape == (5, 11)
    models = [{w for own in found.values() for w in own[family].weights} for family in ceilings.STUDY.families]
    assert [len(weights) for weights in models] == [1, 1]


def test_validating_greedily_changed_no_run(found: shapes.Found) -> None:
    """The same numbers as of the runs without, which earlier commits made."""
    for study, family in ((shapes.TINY, "chains"), (shapes.SHARES, "shares")):
        there = shapes.found_curves(study)
        for key in (("4 × 4", "grpo"), ("16 × 1", "grpo"), ("16 × 1", "rredcot")):
            assert shapes.finals(found[key][family]) == shapes.finals(there[key][family])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"identity": {"rate": 2e-4}}, "chains grpo: runs of 2 kinds"),
        ({"identity": {"sizes": {"steps": 60}}}, "chains grpo: runs of 2 kinds"),
        ({"weights": "another"}, "chains: the runs of .* began with 2 models"),
    ],
)
def test_no_mean_is_of_two_kinds_of_runs(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """A result keeps every run that it ever had; one of another rate would count as one more seed."""
    study = shapes.Study(("chains",), {"4 × 4": "runs"}, (), {"grpo": "GRPO"})
    record = json.loads((shapes.FOLDER / "learning_greedy_4.json").read_text())
    (tmp_path / "runs.json").write_text(json.dumps(record))
    assert shapes.found_curves(study, tmp_path)["4 × 4", "grpo"]["chains"].runs == 5
    first = next(row for row in record["raw"] if row["identity"]["family"] == "chains")
    other = {**first, **changes, "identity": {**first["identity"], **changes.get("identity", {})}}
    (tmp_path / "runs.json").write_text(json.dumps({"raw": [*record["raw"], other]}))
    with pytest.raises(ValueError, match=said):
        shapes.found_curves(study, tmp_path)
