"""The benchmark on learning: its trainer, and runs on the disk that survive what happens to them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import learning
from learn import credit as crediting
from learn.curves import collect
from learn.execute import execute, known_records
from learn.runs import DONE, FAILED, load, merge, save, with_texts
from learn.schedule import Plan
from learn.summary import summarize
from learn.systems import System, parse_system
from learn.tables import make_tables, objections, page_tables
from learn.trainer import LeanTrainer

from rredcot_plugin.presets import PRESETS
from tests.unit.learning_cases import NO_MODELS, SMALL, run_of, small_plan, system


@pytest.fixture(scope="module")
def plan() -> Plan:
    return small_plan()


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    records = execute(plan, folder, NO_MODELS, 1, lambda: True)
    assert len(records) == plan.size({}) == 6 and {r["status"] for r in records.values()} == {DONE}
    return folder


def numbers(record: dict[str, Any]) -> Any:
    """What does not depend on the clock."""
    steps = {k: v for k, v in record["steps"].items() if not k.startswith("seconds")}
    return steps, {k: v for k, v in record["evals"].items() if k != "seconds"}


def test_a_run_has_a_number_for_each_step_and_validation() -> None:
    record = LeanTrainer(run_of("rredcot"), NO_MODELS).fit()
    assert all(len(column) == 2 for column in record["steps"].values())
    assert record["evals"]["step"] == [0.0, 2.0]
    every = [x for part in ("steps", "evals") for column in record[part].values() for x in column]
    assert np.isfinite(every).all() and min(record["steps"]["seconds_credit"]) > 0
    assert record["weights"] == LeanTrainer(run_of("grpo", seed=1), NO_MODELS).weights


def test_an_interrupted_plan_ends_as_one_that_was_not(plan: Plan, folder: Path, tmp_path: Path) -> None:
    allowed = iter([True, True, True, False])
    first = execute(plan, tmp_path, NO_MODELS, 1, lambda: next(allowed, False))
    assert 0 < len(first) < plan.size({})
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    again = execute(plan, tmp_path, NO_MODELS, 1, lambda: True)
    whole = known_records(plan, folder)
    assert {run: numbers(r) for run, r in again.items()} == {run: numbers(r) for run, r in whole.items()}
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in done.items())


def test_a_corrupted_file_is_named_and_run_again(
    plan: Plan, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(tmp_path, [folder]) == plan.size({}) and merge(tmp_path, [folder]) == 0
    run = next(iter(plan.tuning({})))
    path = tmp_path / run.file
    path.write_bytes(path.read_bytes()[:-5])
    assert load(tmp_path, run) is None
    assert run.file in capsys.readouterr().out
    assert numbers(execute(plan, tmp_path, NO_MODELS, 1, lambda: True)[run]) == numbers(load(folder, run) or {})
    with pytest.raises(ValueError, match="no such folder"):
        merge(tmp_path, [tmp_path / "nowhere"])


def test_a_result_file_gives_its_runs_back(plan: Plan, folder: Path, tmp_path: Path) -> None:
    known = known_records(plan, folder)
    written = [with_texts({"identity": run.identity, "file": run.file, **record}) for run, record in known.items()]
    result = tmp_path / "learning.json"
    result.write_text(json.dumps({"raw": written}))
    assert merge(tmp_path / "there", [result]) == plan.size({})
    again = known_records(plan, tmp_path / "there")
    assert again.keys() == known.keys()
    for run, record in known.items():
        assert again[run]["evals"]["accuracy"] == pytest.approx(record["evals"]["accuracy"], rel=1e-3)
        assert again[run]["status"] == record["status"]
    damaged = '{"raw": [{"file": "a.json", "steps": {"accuracy": [1]}}]}'
    for content in ("{}", "[1]", "{", '{"raw": [1]}', damaged, damaged.replace("[1]", '"x"')):
        result.write_text(content)
        with pytest.raises(ValueError, match=r"learning\.json: not a result of this benchmark"):
            merge(tmp_path / "there", [result])


def test_a_report_keeps_the_runs_of_an_earlier_one(
    plan: Plan, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, output = known_records(plan, folder), tmp_path / "learning.json"
    assert learning.published(output) == []
    learning.report(plan, records, output, None, [])
    earlier = learning.published(output)
    assert len(earlier) == plan.size({})
    half = replace(plan, systems=plan.systems[:1])
    learning.report(half, known_records(half, folder), output, None, earlier)
    again = learning.published(output)
    assert {row["file"] for row in again} == {row["file"] for row in earlier}
    assert merge(tmp_path / "fresh", [output]) == plan.size({})
    assert len(known_records(plan, tmp_path / "fresh")) == plan.size({})
    output.write_text("{")
    capsys.readouterr()
    assert learning.published(output) == []
    assert "learning.json: not a result of this benchmark" in capsys.readouterr().out


def test_other_settings_are_other_files() -> None:
    run = run_of("rredcot")
    others = [
        replace(run, seed=1), replace(run, rate=1e-4), replace(run, family="sorting"), replace(run, trainer="verl"),
        replace(run, sizes=replace(SMALL, steps=3)), replace(run, system=System("rredcot", options={"lam": 0.5})),
    ]  # fmt: skip
    assert len({run.file, *(other.file for other in others)}) == 7
    assert replace(run, sizes=replace(SMALL, clean_steps=7)).file == run.file  # sums do not use that model
    assert run.identity["features"] and not run_of("rredcot_paper").identity["features"]


def test_a_result_says_which_baseline_the_default_was() -> None:
    assert system("rredcot").identity["options"] == {"baseline": "auto", "calibrate_window": "auto"}
    assert system("rredcot_window4").identity["options"] == {"baseline": "auto", "calibrate_window": 4}
    assert "calibrate_window" not in system("attention").identity["options"], "it fits nothing"


def test_a_preset_that_has_changed_makes_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        replace(run_of("grpo"), system=parse_system([name, f"preset={name}"])) for name in ("lean", "low_variance")
    ]
    before = [run.file for run in runs]
    assert all(set(run.identity["options"]) == {"preset", "baseline", "calibrate_window"} for run in runs)
    assert not any("preset" in run.identity for run in runs), (
        "those of the committed results say no more than the name"
    )
    for name in ("lean", "low_variance"):
        changed = replace(PRESETS[name], keys={**PRESETS[name].keys, "credit_weight": 0.25})
        monkeypatch.setitem(PRESETS, name, changed)
    assert not set(before) & {run.file for run in runs}


def test_failed_runs_are_named_and_part_of_no_mean(plan: Plan, folder: Path, tmp_path: Path) -> None:
    merge(tmp_path, [folder])
    records = known_records(plan, tmp_path)
    bad = next(run for run in plan.measured(plan.tuned(records)) if run.system.name == "rredcot")
    save(
        tmp_path,
        bad,
        {"status": FAILED, "reason": "FloatingPointError: nan", "commit": "", "cpu": "", "wall_seconds": 1},
    )
    records = known_records(plan, tmp_path)
    runs = [run for run in plan.measured(plan.tuned(records)) if run.system.name == "rredcot"]
    curves = collect(runs, records)
    assert curves.runs == 1 and curves.reasons == ("FloatingPointError: nan",)
    found = {"sums": {"rredcot": curves}}
    tuned = plan.tuned(records)
    assert "1 failed" in make_tables(found, summarize(found), tuned)
    shown = page_tables(found, summarize(found), tuned)
    assert "1 failed" in shown and "steps to GRPO's final accuracy" in shown and "SD of" not in shown
    assert any("FloatingPointError: nan" in line for line in objections(found, summarize(found), tuned))
    assert bad not in plan.todo(records)
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json") if path.name != bad.file}
    again = execute(plan, tmp_path, NO_MODELS, 1, lambda: True, retry_failed=True)
    assert again[bad]["status"] == DONE and numbers(again[bad]) == numbers(load(folder, bad) or {})
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in done} == done


def test_a_gradient_that_is_not_finite_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from learn.execute import perform

    monkeypatch.setitem(crediting.WITHOUT_SEGMENTS, "grpo", lambda rollouts: rollouts.log_probs * torch.nan)
    record = perform(run_of("grpo"), tmp_path, NO_MODELS)
    assert record["status"] == FAILED and "gradient" in record["reason"]
    assert load(tmp_path, run_of("grpo")) is not None


def test_the_shape_of_a_step_may_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", "--prompts", "8", "--group", "2", "--steps", "240"])
    sizes = learning.parse_arguments()[1].sizes
    assert (sizes.prompts, sizes.group, sizes.steps) == (8, 2, 240)
    assert sizes == replace(learning.BATCHES[learning.SMALL], prompts=8, group=2, steps=240)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--group", "0"])
    with pytest.raises(SystemExit, match="2"):
        learning.parse_arguments()
    assert "group=0: expected a positive integer" in capsys.readouterr().err


def test_make_asks_for_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = (learning.ROOT / "Makefile").read_text().partition("\nbench-learning: env\n")[2].partition("\n\n")[0]
    words = recipe.replace("\\\n", " ").partition("benchmarks/learning.py ")[2].split()
    monkeypatch.chdir(learning.ROOT)
    monkeypatch.setattr(sys, "argv", ["learning.py", *words])
    _, plan = learning.parse_arguments()
    record = json.loads((learning.RESULTS / "learning.json").read_text())
    shown = {tuple(name.split("/")[:2]) for name in record["summary"] if name.endswith("/runs")}
    assert {(family, system.name) for family in plan.families for system in plan.systems} == shown
    assert list(plan.seeds) == record["seeds"]


def test_a_system_of_ones_own_may_run_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", "--systems", "--system", "mine", "lam=0.5"])
    _, plan = learning.parse_arguments()
    assert [system.name for system in plan.systems] == ["mine"]
    monkeypatch.setattr(sys, "argv", ["learning.py", "--systems"])
    with pytest.raises(SystemExit):
        learning.parse_arguments()
    assert "--systems: no name given, and no --system" in capsys.readouterr().err
