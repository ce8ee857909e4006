"""The benchmark on learning: steps of 64 rollouts, as few prompts with many rollouts each and as many prompts with one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import curve_figures
import shapes
from learn.curves import Curves, accuracy_at, reach
from learn.statistics import paired_difference
from learn.summary import shown

ROOT = Path(__file__).parents[2]
FEW, MANY = shapes.LARGE.results


@pytest.fixture(scope="module")
def found() -> shapes.Found:
    return shapes.found_curves(shapes.LARGE)


def test_the_page_has_the_rows_and_the_intervals_that_it_cites(found: shapes.Found) -> None:
    page = (ROOT / "docs" / "evidence" / "learning.md").read_text("utf-8").replace("−", "-")
    rows = shapes.table(shapes.LARGE, found).splitlines()
    assert len(rows) == 5 and not [row for row in rows if row not in page.splitlines()]
    base = found[FEW, "grpo"]
    for key in ((FEW, "rredcot"), (FEW, "lean"), (MANY, "rredcot")):
        for family in shapes.LARGE.families:
            ends = paired_difference(*map(shapes.finals, (found[key][family], base[family])))
            assert shown(ends, 3) in page, (key, family)
    steps = [shown(reach(found[MANY, "rredcot"][family], base[family], "step")) for family in base]
    steps_of_groups = shown(reach(found[FEW, "rredcot"]["shares"], base["shares"], "step"))
    assert not [text for text in (*steps, steps_of_groups) if text not in page]


def test_a_curve_that_is_faster_is_not_flattered_by_its_ends() -> None:
    """Straight curves that start together; the second gets where the first ends after two thirds of its steps."""
    steps = np.arange(0.0, 121.0, 12.0)
    slow, fast = (_straight(steps, slope) for slope in (1.0, 1.5))
    for of_run in (False, True):
        assert reach(fast, slow, "step", of_run=of_run)["value"] == pytest.approx(2 / 3)
        assert reach(fast, fast, "step", of_run=of_run)["value"] == pytest.approx(1.0)
    assert accuracy_at(fast, slow, "step")["value"] == pytest.approx(1.5 * 114 / 120)


def test_committed_summaries_are_dated_as_the_tables() -> None:
    own = shapes.found_curves(shapes.TINY)
    summary = json.loads((shapes.FOLDER / "learning_shape_1.json").read_text())["summary"]
    for family in shapes.TINY.families:
        entry = reach(
            own["16 × 1", "reinforce_plus_plus"][family], own["16 × 1", "grpo"][family], "step", of_run=True
        )
        recorded = summary[f"{family}/reinforce_plus_plus/steps_to_grpo_final_of_run"]
        assert entry["value"] == pytest.approx(recorded["value"], abs=1e-3), family


def test_the_page_says_what_no_baseline_does_in_groups() -> None:
    page = (ROOT / "docs" / "evidence" / "learning.md").read_text("utf-8").replace("−", "-")
    found = shapes.found_curves(shapes.TINY)
    told = page.partition("**In groups, no baseline does as well or better**")[2].partition("\n")[0]
    for family in shapes.TINY.families:
        own, default = (found["2 × 8", system][family] for system in ("no_baseline", "rredcot"))
        assert shown(paired_difference(*map(shapes.finals, (own, default))), 3) in told, family
    told = page.partition("**With two rollouts per prompt, the default gains little**")[2].partition("\n")[0]
    for system in ("rredcot", "no_baseline", "low_variance"):
        needs = [
            reach(found["8 × 2", system][family], found["4 × 4", "grpo"][family], "step")
            for family in shapes.TINY.families
        ]
        assert all(f"{entry['value']:.2f}" in told for entry in needs), system


def _straight(steps: np.ndarray, slope: float) -> Curves:
    accuracy = np.minimum(slope * steps / steps[-1], 2.0)[None]
    return Curves(np.array([0]), {"accuracy": accuracy}, {}, {"step": steps[None]}, (), frozenset(), frozenset())


def test_runs_that_chose_the_rate_are_not_measured(found: shapes.Found) -> None:
    for (shape, system), own in found.items():
        for family, curves in own.items():
            record = json.loads((shapes.FOLDER / f"{shapes.LARGE.results[shape]}.json").read_text())
            assert len(record["settings"]["tuning_seeds"]) == 2
            assert curves.seeds.tolist() == record["seeds"], (shape, system, family)


def test_the_picture_has_the_curves_that_were_measured(found: shapes.Found) -> None:
    assert set(curve_figures.LARGE_SHAPES) <= set(found)


def test_the_page_says_what_token_baselines_need() -> None:
    page = (ROOT / "docs" / "evidence" / "learning.md").read_text("utf-8")
    told = page.partition("**verl's optimal token baseline**")[2].partition("\n")[0]
    needed: dict[str, list[str]] = {"otb": [], "otb_leave_one_out": []}
    for study in (shapes.TINY, shapes.SHARES):
        own = shapes.found_curves(study)
        for system, texts in needed.items():
            for family, curves in own["4 × 4", system].items():
                assert curves.seeds.tolist() == [0, 1, 2, 3, 4]
                texts.append(shown(reach(curves, own["4 × 4", "grpo"][family], "step")))
    assert len(needed["otb"]) == 4 and not [text for text in needed["otb"] if text not in told]
    first = [text.partition(" [")[0].replace("> 1.00", "> 1") for text in needed["otb_leave_one_out"]]
    assert told.endswith(f"without the own reward {', '.join(first[:3])} and {first[3]}.")


def test_the_pages_say_what_segments_add_on_sums_of_the_language_model() -> None:
    parts = [shapes.found_curves(study) for study in (shapes.TOTALS_AGAIN, shapes.TOTALS_MORE)]
    for found, seeds in zip(parts, ([5, 6, 7], [8, 9]), strict=True):
        ours, theirs = (found["16 × 1", system]["totals"] for system in ("rredcot", "lean"))
        assert ours.seeds.tolist() == theirs.seeds.tolist() == seeds and ours.weights == theirs.weights
    gain = shapes.default_minus(parts, "totals", shapes.ONE_BASELINE)
    turned = {"value": -gain["value"], "low": -gain["high"], "high": -gain["low"]}
    for page, entry in (
        ("README.md", gain),
        ("docs/evidence/language-model.md", gain),
        ("docs/evidence/index.md", turned),
    ):
        text = (ROOT / page).read_text("utf-8").replace("−", "-")
        assert f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]" in text, page


def test_the_page_says_what_other_seeds_of_sums_end_above_grpo_in_groups() -> None:
    found = shapes.found_curves(shapes.TOTALS_AGAIN)
    base = found["4 × 4", "grpo"]["totals"]
    page = (ROOT / "docs" / "evidence" / "language-model.md").read_text("utf-8").replace("−", "-")
    told = page.partition("(../../benchmarks/results/learning_lm_totals_again_4.json)")
    otb, grpo = ("4 × 4", "otb_leave_one_out"), ("4 × 4", "grpo")
    for key in (("16 × 1", "rredcot"), otb):
        own = found[key]["totals"]
        assert own.seeds.tolist() == base.seeds.tolist() == [5, 6, 7] and own.weights == base.weights
    more = shapes.found_curves(shapes.TOTALS_MORE)
    assert all(own["totals"].seeds.tolist() == [8, 9] for own in more.values()) and {otb, grpo} < set(more)
    assert shown(shapes.difference([found, more], "totals", otb, grpo), 3) in told[2].replace("**", "")
    parts = [shapes.found_curves(shapes.TOTALS), found, more]
    above = shown(shapes.default_minus(parts, "totals", ("4 × 4", "grpo")), 3)
    readme = (ROOT / "README.md").read_text("utf-8").replace("−", "-")
    assert above in told[0].replace("**", "") and above in readme
