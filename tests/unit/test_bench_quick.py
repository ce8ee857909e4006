"""The regression gate: it finds planted mistakes, names damaged files, and says what it has nothing to compare with."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import probe_passes
import quick
from fidelity import Sizes
from quick_checks import exactness, quality, speed
from quick_checks.committed import Committed, command_of
from quick_checks.verdicts import (
    BETTER,
    FAR_OUTSIDE,
    NOTHING,
    SAME,
    WORSE,
    WRONG,
    Finding,
    exact,
    exactly,
    score,
    slower,
)

from rredcot_plugin.credit import shaping

COMMITTED = Committed(quick.RESULTS)
NAN = float("nan")
RANGE = {"value": 1.0, "low": 0.9, "high": 1.1}


def verdicts(findings: list[Finding]) -> set[str]:
    return {finding.verdict for finding in findings}


def by_name(findings: list[Finding], part: str) -> Finding:
    (found,) = [finding for finding in findings if part in finding.name]
    return found


def record_of(name: str) -> dict[str, Any]:
    record = COMMITTED.record(name)
    assert record is not None
    return record


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("segmenters", "step_share"):
        shutil.copy(quick.RESULTS / f"{name}.json", folder)
    return folder


# ---- verdicts


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.6, BETTER), (1.0, SAME), (1.3, SAME), (1.5, WORSE), (2.1, WORSE), (2.3, FAR_OUTSIDE)]
)
def test_slower(value: float, verdict: str) -> None:
    assert slower("x", exactly(value), RANGE, "file: entry").verdict == verdict


@pytest.mark.parametrize(("value", "verdict"), [(1.2, BETTER), (1.0, SAME), (0.8, WORSE), (0.6, FAR_OUTSIDE)])
def test_score(value: float, verdict: str) -> None:
    assert score("x", exactly(value), RANGE, "file: entry").verdict == verdict


def test_what_is_no_number_is_wrong_and_what_is_not_committed_is_said() -> None:
    assert exact("x", NAN, 1.0, "theory").verdict == WRONG
    for compare in (slower, score):
        broken = compare("x", exactly(NAN), RANGE, "file: entry")
        assert (broken.verdict, broken.measured) == (WRONG, None)
        assert compare("x", exactly(1.0), None, "file: entry").verdict == NOTHING


def test_far_outside_is_measured_once_more() -> None:
    ratios = iter([3.0, 1.0, 3.0, 4.0])

    def check(committed: Committed) -> list[Finding]:
        return [slower("x", exactly(next(ratios)), RANGE, ""), exact("y", 0.0, 1.0, "")]

    first, other = quick.run_check("fake", check, COMMITTED)
    assert (first.verdict, other.verdict) == (SAME, SAME)
    assert first.note == "second measurement, the first was 3"
    assert quick.run_check("fake", check, COMMITTED)[0].verdict == FAR_OUTSIDE
    assert next(ratios, None) is None


# ---- files


def test_the_committed_results_are_whole() -> None:
    assert WRONG not in verdicts(exactness.check_results(COMMITTED))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"benchmark": ', "Expecting value"),
        ("[1]", "got list"),
        ('{"summary": {}}', "no benchmark, command"),
        ("low above value", "'step_share': 0.05"),
        ("no value", "'step_share' is not a value"),
        ("nan", "'step_share': nan"),
    ],
)
def test_a_damaged_file_is_named_with_the_command_that_makes_it_again(text: str, why: str, results: Path) -> None:
    path = results / "step_share.json"
    changes = {"low above value": {"low": 0.06}, "no value": {"value": None}, "nan": {"value": NAN, "low": NAN}}
    if text in changes:
        record = json.loads(path.read_text())
        record["summary"]["step_share"] |= {"value": 0.05, "low": 0.04, "high": 0.06} | changes[text]
        if text == "low above value":
            record["summary"]["step_share"]["low"] = 0.055
        text = json.dumps(record)
    path.write_text(text)
    wrong = by_name(exactness.check_results(Committed(results)), "step_share.json")
    assert wrong.verdict == WRONG
    assert str(path) in wrong.note and why in wrong.note and "benchmarks/step_share.py" in wrong.note


def test_a_stopped_run_is_no_committed_number_and_says_how_it_goes_on(results: Path) -> None:
    (results / "overhead.json").write_text('{"benchmark": "overhead", "finished": false, "raw": {"cells": {}}}')
    found = exactness.check_results(Committed(results))
    stopped = by_name(found, "overhead.json")
    assert stopped.verdict == NOTHING and "make bench-overhead" in stopped.note
    assert by_name(found, "2 files are whole").verdict == SAME


@pytest.mark.parametrize("name", ["results", "gradient", "returns", "segmenters", "values"])
def test_without_results_nothing_is_the_same(name: str, tmp_path: Path) -> None:
    assert verdicts(quick.CHECKS[name](Committed(tmp_path))) == {NOTHING}


def test_without_results_times_are_measured_and_compared_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "CELL", probe_passes.ProbeSizes(32, 2, 3))
    monkeypatch.setattr(speed, "ROUNDS", 2)
    monkeypatch.setattr(speed, "CREDIT_ROUNDS", 1)
    monkeypatch.setattr(speed, "CREDIT_TRACES", 8)
    monkeypatch.setattr(speed, "CREDIT_TOKENS", 64)
    for check in (speed.check_overhead, speed.check_assign_credit):
        found = check(Committed(tmp_path))
        assert verdicts(found) == {NOTHING}
        assert all(finding.measured and finding.measured["value"] > 0 for finding in found)


def test_committed_ratios_are_read() -> None:
    ratio = speed._a_token(COMMITTED)
    assert ratio is not None and 1e-4 < ratio["low"] < ratio["value"] < ratio["high"] < 1e-3
    seconds = {name: by_length["8192"] for name, by_length in record_of("segmenters")["raw"].items()}
    relative = speed.over_geometric_mean(seconds)
    assert relative["none"]["value"] < 1 < relative["adaptive"]["value"]


# ---- planted mistakes


def test_probes_are_right_and_a_wrong_backend_or_token_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "PROBES", probe_passes.ProbeSizes(24, 3, 2))
    assert verdicts(exactness.check_probes(COMMITTED)) == {SAME}
    batched, cached = probe_passes.forward_batched, probe_passes.forward_probes
    monkeypatch.setattr(probe_passes, "forward_batched", lambda *args: batched(*args) + 1e-3)
    monkeypatch.setattr(probe_passes, "forward_probes", lambda *args: (cached(*args), cached(*args))[1])
    wrong = {finding.name for finding in exactness.check_probes(COMMITTED) if finding.verdict == WRONG}
    assert wrong == {"log-probs of probes, batched against cached", "tokens that cached reads, over T"}


def test_the_enumerated_gradient_comes_out_again_and_a_wrong_sign_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "POLICIES", 1)
    found = exactness.check_gradient(COMMITTED)
    assert verdicts(found) == {SAME} and by_name(found, "cosine").source.startswith("tabular_gradient.json")
    right = shaping.redistribute

    def wrong(values: torch.Tensor, outcome: torch.Tensor, num_segments: torch.Tensor) -> torch.Tensor:
        deltas = right(values, outcome, num_segments).clone()
        deltas[:, 1:2] *= -1
        return deltas

    monkeypatch.setattr(shaping, "redistribute", wrong)
    found = exactness.check_gradient(COMMITTED)
    assert verdicts(found) == {WRONG}
    assert "largest: " in by_name(found, "bias at").note


def test_return_equivalence_comes_out_again_and_a_changed_file_shows(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: kind for name, kind in exactness.kinds().items() if name in ("exact", "turned", "sees_outcome")}
    monkeypatch.setattr(exactness, "kinds", lambda: few)
    monkeypatch.setattr(exactness, "POLICIES", 1)
    record = record_of("return_equivalence")
    assert verdicts(exactness.check_returns(COMMITTED)) == {SAME}
    record["raw"]["turned/lam_0"][0] -= 0.5
    del record["raw"]["exact/lam_1"]
    (results / "return_equivalence.json").write_text(json.dumps(record))
    found = exactness.check_returns(Committed(results))
    assert by_name(found, "regret").note == "largest: turned/lam_0"
    assert (by_name(found, "regret").verdict, by_name(found, "kind exact").verdict) == (WRONG, NOTHING)


# ---- values


@pytest.fixture(scope="module")
def fidelity() -> dict[str, Any]:
    """A committed run of two prompts, as fidelity.py writes it, with references of its own."""
    sizes = {"prompts": 2, "group": 3, "past": 0, "judged": 2}
    bench = quality.sample(Sizes(**sizes))
    outcomes, counts = bench.batches[-1].rows.rollouts.outcomes, bench.segments[-1].num_segments.tolist()
    values, fitted = bench.values("support"), bench.values("default")
    rng = np.random.default_rng(0)
    at = [(row, k) for row in range(6) if row % 3 < 2 for k in range(1, counts[row])]
    lines = [f"{r} {k} {outcomes[r]:.0f} {rng.random():.3f} {values[r, k]} {fitted[r, k]}" for r, k in at]
    summary = {"sums/accuracy": exactly(float(outcomes.mean()))}
    raw = {"columns": ["row", "state", "outcome", "reference", "support", "default"], "places": lines}
    empty = {"benchmark": "fidelity", "command": "", "commit": "", "machine": {}}
    return {**empty, "settings": {"sizes": sizes}, "summary": summary, "raw": {"sums": [raw]}}


def checked(record: dict[str, Any], folder: Path) -> list[Finding]:
    (folder / "fidelity.json").write_text(json.dumps(record))
    return quality.check_values(Committed(folder))


def test_values_are_compared_place_by_place(fidelity: dict[str, Any], tmp_path: Path) -> None:
    found = checked(fidelity, tmp_path)
    assert [finding.verdict for finding in found] == [SAME, SAME, SAME, SAME]
    moved = json.loads(json.dumps(fidelity))
    row, k, outcome, reference, value, default = moved["raw"]["sums"][0]["places"][0].split()
    moved["raw"]["sums"][0]["places"][0] = f"{row} {k} {outcome} {reference} {float(value) + 0.01} {default}"
    assert by_name(checked(moved, tmp_path), "places").verdict == WRONG


def test_values_of_other_rollouts_are_not_compared(fidelity: dict[str, Any], tmp_path: Path) -> None:
    other = json.loads(json.dumps(fidelity))
    other["raw"]["sums"][0]["places"].pop()
    found = checked(other, tmp_path)
    assert [finding.verdict for finding in found] == [SAME, NOTHING]
    assert "other rollouts" in found[1].note


def test_every_committed_result_has_a_command_that_exists() -> None:
    root = Path(__file__).parents[2]
    makefile = (root / "Makefile").read_text()
    names = Committed(root / "benchmarks" / "results").names()
    assert len(names) > 10
    for name in names:
        first = command_of(name).split(" && ")[-1].split()
        if first[0] == "make":
            assert f"\n{first[1]}:" in makefile, name
        else:
            assert first[0] in ("python", ".venv-openrlhf/bin/python") and (root / first[1]).is_file(), name


# ---- the command


def test_exit_codes_and_what_is_written(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "quick.json"
    arguments = ["--results", str(results), "--output", str(output), "--only", "results"]
    assert quick.main(arguments) == 0
    assert "passed" in capsys.readouterr().out
    record = json.loads(output.read_text())
    assert {"command", "commit", "machine", "settings", "seeds", "summary", "raw"} <= set(record)
    assert record["raw"]["results"][0]["verdict"] == SAME
    (results / "segmenters.json").write_text("{")
    assert quick.main([*arguments, "segmenters"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "python benchmarks/segmenters.py" in out
    assert [row["verdict"] for row in json.loads(output.read_text())["raw"]["segmenters"]] == [WRONG]


@pytest.mark.parametrize(
    "arguments", [["--only", "nosuch"], ["--results", "nowhere"], ["--output", str(quick.RESULTS / "quick.json")]]
)
def test_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        quick.main(arguments)
    assert caught.value.code == 2
    assert not (quick.RESULTS / "quick.json").exists()
