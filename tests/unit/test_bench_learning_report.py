"""The benchmark on learning: its schedule, its statistics and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import learning
from curve_figures import PANELS, SYSTEMS, accuracies
from lab.store import Store
from learn.curves import arrival, collect, pace_of, reach, smoothed, spent
from learn.reward_model import every_score, load_reward_model
from learn.runs import FAILED, Record, Run, Sizes, model_digest, save
from learn.schedule import Plan, Tuned
from learn.statistics import improvement, interval, iqm, paired_difference
from learn.summary import shown, summarize, verdicts
from learn.systems import Judging, choose, parse_system
from learn.tables import draw, fill_page, objections
from learn.trainer import LeanTrainer
from page_figures import TASKS, signals

from rredcot_plugin.integrations.verl.prefix_scores import check_reward_model
from tests.unit.learning_cases import NO_MODELS, SMALL, made_up, run_of, small_plan


def test_the_schedule_tunes_first_and_with_equal_effort() -> None:
    plan = replace(small_plan(), rates=(1e-4, 2e-4))
    tuning = plan.tuning({})
    assert plan.todo({}) == tuning and not plan.measured(plan.tuned({}))
    accuracy = {1e-4: [0.1] * 5, 2e-4: [0.1, 0.1, 0.1, 0.9, 0.9]}
    records = {run: made_up(run, accuracy[run.rate], 1.0) for run in tuning}
    tuned = plan.tuned(records)
    assert {choice.rate for choice in tuned.values()} == {2e-4} and tuned["sums", "grpo"].at_edge
    assert [(run.seed, run.system.name) for run in plan.todo(records)] == [
        (0, "grpo"), (0, "rredcot"), (1, "grpo"), (1, "rredcot")
    ]  # fmt: skip
    records[tuning[-1]] = {"status": FAILED, "reason": "x"}
    assert plan.tuned(records)["sums", tuning[-1].system.name].scores[2e-4] == 0.0
    with pytest.raises(ValueError, match="9001"):
        replace(plan, seeds=(9001,))


def test_rates_beyond_the_grid_are_tried_where_the_best_is_at_its_edge() -> None:
    plan = replace(small_plan(), rates=(1e-4, 2e-4), further=(2.5e-5, 5e-5, 4e-4))
    late = {"grpo": {1e-4: 0.1, 2e-4: 0.2, 4e-4: 0.1}, "rredcot": {1e-4: 0.3, 2e-4: 0.2, 5e-5: 0.4, 2.5e-5: 0.1}}
    records: dict[Run, Any] = {}
    asked = []
    while todo := [run for run in plan.todo(records) if run.seed in plan.tuning_seeds]:
        asked.append({(run.system.name, run.rate) for run in todo})
        assert plan.size(records) == len(records) + len(todo) + 4
        records |= {run: made_up(run, [late[run.system.name][run.rate]] * 5, 1.0) for run in todo}
        if len(asked) == 2:  # the least rate of rredcot is not measured before the next one is known to be worse
            assert {run.system.name for run in plan.todo(records) if run.seed in plan.seeds} == {"grpo"}
    assert asked[1:] == [{("grpo", 4e-4), ("rredcot", 5e-5)}, {("rredcot", 2.5e-5)}]
    tuned = plan.tuned(records)
    assert {pair[1]: (choice.rate, choice.at_edge) for pair, choice in tuned.items()} == {
        "grpo": (2e-4, False), "rredcot": (5e-5, False)
    }  # fmt: skip
    half = {run: record for run, record in records.items() if run.rate != 2.5e-5}
    assert plan.tuned(half)["sums", "rredcot"].at_edge and plan.tuned(half)["sums", "rredcot"].rate == 5e-5


def test_a_single_rate_needs_no_seed_to_choose_it_by() -> None:
    plan = replace(small_plan(), tuning_seeds=())
    assert [(run.rate, run.seed) for run in plan.todo({})] == [(1e-4, 0), (1e-4, 0), (1e-4, 1), (1e-4, 1)]
    assert plan.size({}) == 4 and not plan.tuned({})["sums", "grpo"].at_edge
    with pytest.raises(ValueError, match="--tuning-seeds is empty"):
        replace(plan, rates=(1e-4, 2e-4))


def test_statistics_on_known_numbers() -> None:
    assert iqm(np.array([-100.0, 1, 2, 3, 3, 2, 1, 100])) == 2.0
    assert improvement(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == 0.875
    entry = interval(lambda rows: float(np.arange(100.0)[rows].mean()), [100])
    assert entry["value"] == 49.5 and 42 < entry["low"] < 46 and 53 < entry["high"] < 57
    assert np.isnan(interval(lambda rows: 1.0, [1])["low"])
    few = np.array([1.0, 2.0, 4.0])
    spread = interval(lambda rows: float(few[rows].std(ddof=1)), [3], centred=True)
    plain = interval(lambda rows: float(few[rows].std(ddof=1)), [3])
    assert spread["low"] < spread["value"] < spread["high"] and spread["high"] > plain["high"]
    assert smoothed(np.array([0.0, 1.0])).tolist() == [0.5, 0.5]
    assert arrival(np.arange(3.0), np.array([0.0, 0.5, 0.4]), 0.6) == np.inf
    gap = paired_difference({1: 3.0, 2: 5.0, 7: 9.0, 8: 0.0}, {2: 4.0, 1: 3.0, 7: 7.0})  # 0, 1 and 2
    assert gap["value"] == 1.0 and gap["high"] - 1.0 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert gap["low"] == pytest.approx(2.0 - gap["high"])
    assert np.isnan(paired_difference({1: 3.0}, {1: 1.0})["low"])


def test_ratios_of_steps_and_seconds_on_made_up_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learn.statistics.RESAMPLES", 50)
    line = np.linspace(0, 1, 21)
    shapes = {
        "grpo": (line, 1.0),
        "rredcot": (2 * line, 3.0),
        "mc_grpo": (line, 10.0),
        "attention": (0 * line, 1.0),
    }
    found = {}
    for name, (curve, seconds) in shapes.items():
        runs = [run_of(name, seed=seed) for seed in range(3)]
        found[name] = collect(runs, {run: made_up(run, list(curve), seconds) for run in runs})
    assert spent(made_up(run_of("grpo"), [0.0, 1.0], 2.0))["seconds"].tolist() == [0.0, 2.0]
    assert reach(found["grpo"], found["grpo"], "step")["value"] == pytest.approx(1.0)
    assert reach(found["rredcot"], found["grpo"], "step")["value"] == pytest.approx(0.5)
    assert reach(found["rredcot"], found["grpo"], "seconds")["value"] == pytest.approx(1.5)
    never = reach(found["attention"], found["grpo"], "step")
    assert never["reached"] == 0.0 and never["censored"] == 1.0 and never["value"] >= 1.0
    assert shown(never) == f"> {never['value']:.2f}"
    assert shown(never | {"reached": 1.0, "censored": 0.03}).endswith(f", > {never['high']:.2f}]")
    summary = summarize({"sums": found})
    assert summary["time_vs_mc_grpo"]["value"] == pytest.approx(0.15)
    assert all("MET" in line for line in verdicts(summary))
    assert summary["all/rredcot/area_better_than_grpo"]["value"] == 1.0
    summary["steps_to_grpo_final"] |= {"reached": 0.0}
    assert "MISSED" in verdicts(summary)[0]
    draw(tmp_path / "x.png", {"sums": found})
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_seconds_are_those_of_one_pace() -> None:
    """The same run on a machine twice as busy takes as long, and credit stays what it is beside an update."""

    def run_at(load: float, credit: float) -> Record:
        phases = {"rollout": 3.0, "log_prob": 1.0, "credit": credit, "update": 2.0}
        seconds = {f"seconds_{name}": [load * x, load * x] for name, x in phases.items()}
        return {"steps": {"response_tokens": [10, 10], "continuation_tokens": [0, 0], **seconds}}

    quiet, busy, dear = run_at(1.0, 0.0), run_at(2.0, 0.0), run_at(2.0, 1.0)
    pace = pace_of([quiet])
    assert (pace.plain, pace.update) == pytest.approx((0.6, 0.2))
    assert spent(busy)["seconds"].tolist() == [0.0, 12.0, 24.0]
    assert spent(busy, pace)["seconds"].tolist() == pytest.approx([0.0, 6.0, 12.0])
    assert spent(dear, pace)["seconds"].tolist() == pytest.approx([0.0, 7.0, 14.0])


def test_seconds_of_another_processor_are_not_compared() -> None:
    found, tuned = {}, {}
    for name, cpu in (("grpo", "a"), ("mc_grpo", "b"), ("rredcot", "a")):
        runs = [run_of(name, seed=seed) for seed in range(3)]
        found[name] = collect(runs, {run: {**made_up(run, [0.0, 1.0], 1.0), "cpu": cpu} for run in runs})
        tuned["sums", name] = Tuned(1e-4, {}, failed=0)
    summary = summarize({"sums": found})
    assert "sums/rredcot/seconds_to_grpo_final" in summary
    for name in ("sums/mc_grpo/seconds_to_grpo_final", "sums/rredcot/seconds_to_mc_grpo_final", "time_vs_mc_grpo"):
        assert name not in summary
    assert "sums/mc_grpo/steps_to_grpo_final" in summary
    lines = objections({"sums": found}, summary, tuned)
    assert [line for line in lines if "processor" in line] == [
        "sums: mc_grpo ran on another processor than GRPO, so no seconds are compared"
    ]


def test_runs_of_another_model_are_not_compared() -> None:
    found: dict[str, Any] = {"sums": {}, "habits": {}}
    for name, weights in (("grpo", "a"), ("rredcot", "a"), ("attention", "b"), ("red", "")):
        runs = [run_of(name, seed=seed) for seed in range(2)]
        records = {run: {**made_up(run, [0.0, 1.0], 1.0), "weights": weights} for run in runs}
        found["sums"][name] = collect(runs, records)
    found["habits"]["red"] = found["sums"]["red"]  # nothing there to compare with
    lines = learning.leave_out_other_models(found)
    assert list(found["sums"]) == ["grpo", "rredcot"] and list(found["habits"]) == ["red"]
    assert [line.split(":")[0] for line in lines] == ["sums attention", "sums red"]


def test_wrong_names_say_which_exist() -> None:
    with pytest.raises(ValueError, match="Did you mean grpo\\? Known: grpo, mc_grpo"):
        choose(["grpoo"], [])
    for words, message in (
        (["grpo"], "taken"),
        (["a", "lam"], "key=value"),
        (["a", "lamb=1"], "lam"),
        (["a-b"], "name"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_system(words)
    own = parse_system(["mine", "lam=0.5"])
    assert own.config.lam == 0.5 and choose(["grpo"], [own])[-1] is own
    with pytest.raises(ValueError, match="prompts"):
        Sizes(prompts=1)


def test_the_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- learning -->\nold\n<!-- learning: end -->\nb\n")
    fill_page(page, "new")
    assert page.read_text() == "a\n<!-- learning -->\n\nnew\n\n<!-- learning: end -->\nb\n"
    page.write_text(page.read_text() + "<!-- learning_large --><!-- learning_large: end -->")
    fill_page(page, "wide", "learning_large")
    assert "new" in page.read_text() and "wide" in page.read_text()
    page.write_text("a")
    with pytest.raises(ValueError, match="no line"):
        fill_page(page, "new")


def test_a_real_run_gets_the_systems_options(tmp_path: Path) -> None:
    from learn.against_verl import compare, real_run

    sizes = Sizes()
    real = real_run(replace(run_of("rredcot_lam95", sizes), trainer="verl"), tmp_path)
    assert "+algorithm.rredcot.lam=0.95" in real.overrides(tmp_path) and real.estimator == "rredcot"
    assert real_run(run_of("grpo", sizes), tmp_path).estimator == "grpo"
    red = real_run(run_of("red", sizes), tmp_path)
    given = [option for option in red.overrides(tmp_path) if "rredcot" in option]
    assert red.estimator == "red" and given == [
        f"+algorithm.rredcot.value_kwargs.path={tmp_path / 'reward_model'}"
    ]
    for wrong in (
        run_of("red_lam0", sizes),
        run_of("control_no_reward", sizes),
        run_of("grpo", SMALL),
        replace(run_of("grpo", sizes), family="programs"),
    ):
        with pytest.raises(ValueError, match=r"real runs|control"):
            real_run(wrong, tmp_path)
    low, high = ([made_up(run_of("grpo"), [0.0] * 10, 1.0) for _ in range(3)] for _ in range(2))
    for record in high:
        record["steps"]["accuracy"] = [1.5] * 9
    entry = compare(low, high, "x")["x/reward_third_1/difference"]
    assert entry == {"value": -0.5, "low": -0.5, "high": -0.5}


def test_a_real_run_reads_the_lean_runs_reward_model(tmp_path: Path) -> None:
    from learn.against_verl import save_reward_model

    judging = Judging(questions=2, group=2, epochs=1)
    save_reward_model(run_of("red"), tmp_path / "models", tmp_path / "saved", judging)
    lean = LeanTrainer(run_of("grpo"), tmp_path / "models").actor
    check_reward_model(str(tmp_path / "saved"), lean.tokenizer)
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values()), info
    digest = model_digest(lean.family.model, SMALL.clean_steps)
    known = load_reward_model(lean, Store(tmp_path / "models"), digest, judging)
    tokens = [lean.tokenizer.encode("2 + 3 = 5")]
    torch.testing.assert_close(every_score(loaded.eval(), tokens), every_score(known, tokens))


def test_real_runs_stay_in_their_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(run: Run, folder: Path, *_: Path) -> dict[str, Any]:
        record = made_up(run, [0.0] * (run.sizes.steps + 1), 1.0)
        save(folder, run, record)
        return record

    def never(run: Run, folder: Path, *_: Path) -> dict[str, Any]:
        raise AssertionError(run.name)

    output = tmp_path / "learning_verl.json"
    plan = Plan(("sums",), tuple(choose(["grpo"], [])), (2e-4,), (9001,), (0, 1), Sizes())
    args = argparse.Namespace(verl_seeds=[0, 1], report=False, budget=None, models=NO_MODELS)
    for folder, perform in (("here", run_once), ("elsewhere", never)):
        monkeypatch.setattr(learning, "perform", perform)
        monkeypatch.setattr("learn.against_verl.perform_real", perform)
        learning.against_verl(args, plan, tmp_path / folder, output)
        rows = learning.published(output)
        assert sorted(row["identity"]["trainer"] for row in rows) == ["lean", "lean", "verl", "verl"]
        assert json.loads(output.read_text())["summary"]["sums/grpo/reward_third_1/difference"]["value"] == 0.0


def test_both_batches_generate_as_much_and_validate_as_often() -> None:
    small, large = (learning.BATCHES[name] for name in (learning.SMALL, learning.LARGE))
    assert small.steps * small.prompts * small.group == large.steps * large.prompts * large.group
    assert small.steps / small.eval_every == large.steps / large.eval_every
    assert small.warmup / small.steps == pytest.approx(large.warmup / large.steps, abs=0.02)
    assert (
        learning.BATCHES.keys() == learning.RATES.keys() == learning.TUNING_SEEDS.keys() == learning.OUTPUTS.keys()
    )


def test_the_figure_of_the_effect_shows_measured_seeds_of_every_system() -> None:
    for family, (result, _) in PANELS.items():
        summary = json.loads((learning.RESULTS / f"{result}.json").read_text())["summary"]
        for system in SYSTEMS:
            steps, curves = accuracies(result, family, system)
            assert len(curves) == summary[f"{family}/{system}/runs"]["value"] >= 10  # none of a former default
            assert curves.shape[1] == len(steps) == 11
            assert curves.min() >= 0 and curves.max() <= 1


def test_the_figure_of_the_gradient_shows_the_numbers_of_the_table() -> None:
    page = (Path(learning.ROOT) / "docs" / "evidence" / "estimators.md").read_text()
    for task in TASKS:
        measured = signals(task)
        for entry in (measured["default"], measured["norm_weighted_mean"]):
            assert f"{entry['value']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}]" in page
