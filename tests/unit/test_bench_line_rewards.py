"""The benchmark on learning: rewards on the lines that earned them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import curve_figures
import learning
import line_rewards
import shapes
from lab.rollouts import with_signals
from lab.store import Store
from lab.tasks import FAMILIES
from learn.batch import first_actor, rollouts
from learn.credit import Crediter
from learn.line_rewards import on_lines
from learn.runs import Sizes, rows_of, with_numbers
from learn.schedule import late_accuracy
from learn.summary import shown

from tests.unit.learning_cases import system


@pytest.mark.parametrize("name", ["shares", "rungs", "traps"])
def test_a_line_has_its_own_reward_and_the_sum_stays(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    actor = first_actor(family, Store(tmp_path), Sizes(1).clean_steps, "cpu")
    questions = family.problems("train", 8, 3)
    batch = with_signals(actor, rollouts(actor, questions, 1, 5), questions)
    crediter = Crediter(system("line_rewards"), actor, 0)
    segments = crediter.segmenter(batch.rows.rollouts)
    placed = on_lines(family, batch, segments).rows.rollouts
    assert torch.allclose(placed.outcomes, batch.rows.rollouts.outcomes, atol=1e-6)
    assert 0 < int((placed.rewards != 0).sum(1).max()) <= segments.max_segments
    for row, question in enumerate(questions):
        count, text = int(segments.num_segments[row]), placed.texts[row]
        own = [float(placed.rewards[row, segments.segment_ids[row] == k].sum()) for k in range(count)]
        assert np.allclose(own[:-1], family.line_rewards(question, text)[: count - 1])
    whole = Crediter(system("rredcot"), actor, 0)(batch, 1).advantages
    for of_lines in ("line_rewards", "line_rewards_lam50", "line_rewards_lam0"):
        found = Crediter(system(of_lines), actor, 0)(batch, 1).advantages
        assert torch.isfinite(found).all() and not torch.allclose(found, whole)


def test_where_lines_earn_nothing_it_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["learning.py", "--systems", "line_rewards", "--families", "chains", "shares"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        learning.parse_arguments()
    assert (
        "--systems line_rewards: lines earn nothing of their own in chains; choose --families of shares, rungs, traps, ranks"
        in (capsys.readouterr().err)
    )


def test_the_pages_have_the_rows_and_the_intervals_of_the_committed_results() -> None:
    found = shapes.found_curves(line_rewards.STUDY)
    root = Path(__file__).parents[2]
    page = (root / "docs" / "evidence" / "learning.md").read_text("utf-8").replace("−", "-")
    rows = line_rewards.table(found).splitlines()
    assert len(rows) == 7 and not [row for row in rows if row not in page.splitlines()]
    section = page.partition("## Rewards on single lines")[2].partition("\n## ")[0]
    traps = shapes.found_curves(line_rewards.TRAPS)
    printed = line_rewards.intervals(found) + line_rewards.ends(line_rewards.TRAPS, traps)
    cited = re.findall(r"-?\d\.\d+ \[[^]]+\]", section)
    assert len(cited) == 11 and not [number for number in cited if number not in printed]
    assert set(curve_figures.LINE_CURVES) <= {*found, *traps}
    for own in [*found.values(), *traps.values()]:
        for curves in own.values():
            assert curves.seeds.tolist() == [0, 1, 2, 3, 4]


def test_the_language_models_page_has_the_committed_gains() -> None:
    study = line_rewards.LANGUAGE_MODEL
    found = shapes.found_curves(study)
    assert all(own["ranks"].seeds.tolist() == [0, 1, 2, 3, 4] for own in found.values())
    root, rows = Path(__file__).parents[2], line_rewards.ends(study, found).splitlines()
    page = (root / "docs" / "evidence" / "language-model.md").read_text("utf-8").replace("−", "-")
    assert len(rows) == 7 and not [row for row in rows if row not in page.splitlines()]
    section = page.partition("**Where lines earn shares")[2].partition("\n![")[0]
    cited = re.findall(r"-?\d\.\d+ \[[^]]+\]", section.partition("The default needs")[2])
    assert len(cited) == 2 and all(text in line_rewards.intervals(found) for text in cited)
    readme = (root / "README.md").read_text("utf-8").replace("−", "-")
    gained = [line.partition("minus GRPO's ")[2] for line in line_rewards.intervals(found).splitlines()]
    assert gained[1:3] == ["-0.017 [-0.074, 0.039]", "0.054 [0.021, 0.088]"]
    assert gained[1] in readme


def test_more_seeds_on_another_draw_of_the_model_are_told() -> None:
    parts = [shapes.found_curves(study) for study in (line_rewards.LANGUAGE_MODEL, line_rewards.AGAIN)]
    seeds, weights = (
        [getattr(part["16 × 1", "lean"]["ranks"], name) for part in parts] for name in ("seeds", "weights")
    )
    assert [own.tolist() for own in seeds] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert len(weights[0] | weights[1]) == 2
    gain = shown(shapes.default_minus(parts, "ranks", shapes.ONE_BASELINE), 3)
    root = Path(__file__).parents[2]
    for page in ("README.md", "docs/evidence/language-model.md", "docs/evidence/index.md"):
        assert gain in (root / page).read_text("utf-8").replace("−", "-").replace("**", "")


def test_the_page_says_what_groups_of_four_give_on_other_seeds() -> None:
    """RLOO and leave-one-out OTB against GRPO, with two seeds more; and the default above GRPO, on all seeds."""
    parts = [shapes.found_curves(study) for study in (line_rewards.LANGUAGE_MODEL, line_rewards.AGAIN)]
    groups = {key[1]: own["ranks"] for key, own in parts[1].items() if key[0] == line_rewards.GROUPS}
    assert set(groups) == {"grpo", "rloo", "otb_leave_one_out"}
    weights = parts[1]["16 × 1", "rredcot"]["ranks"].weights
    assert all(own.seeds.tolist() == [5, 6, 7] and own.weights == weights for own in groups.values())
    root = Path(__file__).parents[2]
    page, readme = (
        (root / name).read_text("utf-8").replace("−", "-").replace("**", "")
        for name in ("docs/evidence/language-model.md", "README.md")
    )
    told = page.partition("(../../benchmarks/results/learning_lm_ranks_again_4.json)")[2].partition("\n\n")[0]
    more = shapes.found_curves(line_rewards.MORE)
    assert {key[1] for key in more if key[0] == line_rewards.GROUPS} == set(groups)
    assert all(own["ranks"].seeds.tolist() == [8, 9] and own["ranks"].weights != weights for own in more.values())
    for estimator in ("rloo", "otb_leave_one_out"):
        pair = ("4 × 4", estimator), ("4 × 4", "grpo")
        assert shown(shapes.difference([parts[1], more], "ranks", *pair), 3) in told, estimator
    assert more["16 × 1", "rredcot"]["ranks"].seeds.tolist() == [8, 9]
    above = shown(shapes.default_minus([*parts, more], "ranks", ("4 × 4", "grpo")), 3)
    assert above in told and above in readme


def test_the_page_says_what_continuations_give_and_cost_on_the_language_model() -> None:
    parts = [shapes.found_curves(study) for study in (line_rewards.AGAIN, line_rewards.MORE)]
    for found, seeds in zip(parts, ([5, 6, 7], [8, 9]), strict=True):
        own, default = (found["16 × 1", system]["ranks"] for system in ("mc_grpo", "rredcot"))
        assert own.seeds.tolist() == default.seeds.tolist() == seeds and own.weights == default.weights
    said = line_rewards.continuations(parts, "ranks")
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "language-model.md").read_text("utf-8")
    text = page.replace("−", "-").partition("**MC-GRPO**")[2].partition("\n\n")[0]
    cited = re.findall(r"-?\d\.\d+ \[[^]]+\]|\d\.\d\b|\d\.\d\d\b", text)
    assert len(cited) == 5 and not [number for number in cited if number not in said]


def test_the_page_says_where_twice_the_rate_ends() -> None:
    found = shapes.found_curves(line_rewards.FASTER)
    ends = {key: own["ranks"] for key, own in found.items()}
    assert {tuple(own.seeds.tolist()) for own in ends.values()} == {(5,)}
    last = {
        key: [f"{own.final(name).mean():.2f}" for name in ("accuracy", "all_right")] for key, own in ends.items()
    }
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "language-model.md").read_text("utf-8")
    text = page.partition("**At twice the rate**")[2].partition("\n\n")[0]
    assert [last[key][0] for key in (("16 × 1", "rredcot"), ("16 × 1", "lean"), ("16 × 1", "grpo"))] == re.findall(
        r"\d\.\d\d\b", text
    )
    assert last["4 × 4", "grpo"] == last["16 × 1", "lean"] and last["16 × 1", "lean"][1] == "0.00"


def test_the_page_says_which_rates_are_best_on_sums() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "language-model.md").read_text("utf-8")
    told = page.partition("**Caveats**")[2].partition("\n\n|")[0]
    chosen, scores = {}, {}
    for credit, name in (("rredcot", "rates_1"), ("grpo", "rates_4")):
        result = shapes.FOLDER / f"learning_lm_totals_{name}.json"
        rows = [with_numbers(row) for row in rows_of(result) if row["identity"]["seed"] == 8]
        scores[credit] = {row["identity"]["rate"]: late_accuracy(row) for row in rows}
        (chosen[credit],) = json.loads(result.read_text())["settings"]["chosen_rates"].values()
        assert set(scores[credit]) == {1e-5, 2e-5, 4e-5} and f"{scores[credit][chosen[credit]]:.2f}" in told
    assert chosen == {"rredcot": 2e-5, "grpo": 1e-5} and f"instead of {scores['grpo'][2e-5]:.2f}" in told


def test_the_page_says_which_rates_are_best_on_sums_after_another_warm_up() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "language-model.md").read_text("utf-8")
    told = page.partition("learning_lm_totals_rates_again.json")[2].partition("\n")[0]
    rows = [with_numbers(row) for row in rows_of(shapes.FOLDER / "learning_lm_totals_rates_again.json")]
    late = {
        (row["identity"]["system"], row["identity"]["rate"]): f"{late_accuracy(row):.2f}"
        for row in rows
        if row["identity"]["seed"] == 8
    }
    at_one = {system: late[system, 1e-5] for system in ("rredcot", "lean", "grpo")}
    at_two = {system: late[system, 2e-5] for system in at_one}
    tried = [at_two["grpo"], at_one["rredcot"], at_one["lean"], at_two["rredcot"], at_two["lean"]]
    (next_seed,) = {f"{late_accuracy(row):.2f}" for row in rows if row["identity"]["seed"] == 9}
    assert re.findall(r"0\.\d\d", told) == [*tried, next_seed]
    assert all(late[system, 4e-5] < max(at_one[system], at_two[system]) for system in at_one)
    assert len({row["weights"] for row in rows}) == 1
    (lean,) = (row for row in rows if row["identity"]["system"] == "lean" and row["identity"]["rate"] == 2e-5)
    accuracy = list(lean["evals"]["accuracy"])
    assert min(accuracy[:-1]) > accuracy[-1]


def test_rewards_at_the_end_are_learned_from_as_before() -> None:
    own, before = shapes.found_curves(line_rewards.STUDY), shapes.found_curves(shapes.SHARES)
    for key in (("4 × 4", "grpo"), ("16 × 1", "rredcot"), ("16 × 1", "reinforce_plus_plus")):
        assert shapes.finals(own[key]["shares"]) == shapes.finals(before[key]["shares"])


def test_the_page_says_what_continuations_give_on_sums_of_the_language_model() -> None:
    found = shapes.found_curves(shapes.TOTALS_CONTINUED)
    own, default = (found["16 × 1", system]["totals"] for system in ("mc_grpo", "rredcot"))
    assert own.seeds.tolist() == [8, 9, 10, 11, 12] and own.weights == default.weights
    assert default.seeds.tolist() == own.seeds.tolist()
    said = line_rewards.continuations([found], "totals")
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "language-model.md").read_text("utf-8")
    text = page.replace("−", "-").partition("learning_lm_totals_continued.json")[2].partition(";")[0]
    cited = re.findall(r"-?\d\.\d+ \[[^]]+\]|\d\.\d\b", text)
    assert len(cited) == 3 and not [number for number in cited if number not in said]
