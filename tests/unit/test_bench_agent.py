"""benchmarks/agent.py: what it says of runs, without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import agent


def cell(system: str, seed: int, rewards: list[float]) -> dict[str, Any]:
    return {
        "system": system,
        "seed": seed,
        "rewards": rewards,
        "turns": [4.0] * len(rewards),
        "wall_seconds": 1.0,
        "commit": "abc",
        "cpu": "one",
    }


def test_differences_are_of_the_same_seed_and_over_the_seeds_that_both_have() -> None:
    cells = [
        cell("grpo", 0, [0.1, 0.2, 0.3, 0.4]),
        cell("grpo", 1, [0.5, 0.6, 0.7, 0.8]),
        cell("turn", 0, [0.2, 0.3, 0.4, 0.5]),
        cell("turn", 1, [0.6, 0.7, 0.8, 0.9]),
        cell("turn", 2, [0.0, 0.0, 0.0, 0.0]),
    ]
    found = agent.summarize({str(i): one for i, one in enumerate(cells)})
    assert found["difference/turn/reward_all"]["value"] == pytest.approx(0.1)
    assert found["difference/turn/reward_all"]["low"] == pytest.approx(0.1)
    assert found["grpo/reward_last_quarter"]["value"] == pytest.approx(0.6)
    assert found["turn/reward_last_quarter"]["value"] == pytest.approx(0.5)
    assert not any("difference/grpo" in name for name in found)


def test_turns_are_compared_with_one_baseline_per_trace_and_shares_leave_the_first_steps_out() -> None:
    cells = [
        cell("trace", 0, [0.5, 0.5, 0.5, 0.5]) | {"shares": [0.9, 0.9, 0.02, 0.02]},
        cell("turn", 0, [0.5, 0.5, 0.5, 0.7]) | {"shares": [0.9, 0.9, 0.04, 0.04]},
        cell("turn", 1, [0.0, 0.0, 0.0, 0.0]),
    ]
    found = agent.summarize({str(i): one for i, one in enumerate(cells)})
    assert found["difference/turn-trace/reward_all"]["value"] == pytest.approx(0.05)
    assert found["turn/step_share"]["value"] == pytest.approx(0.04)
    assert found["trace/step_share"]["value"] == pytest.approx(0.02)


def test_a_share_is_what_every_part_of_rredcot_took() -> None:
    row = {
        "timing_s/step": 10.0,
        "timing_s/rredcot_probes": 0.5,
        "timing_s/rredcot_credit": 0.25,
        "timing_s/gen": 4.0,
    }
    assert agent.share_of(row) == pytest.approx(0.075)


def test_a_plan_that_was_stopped_goes_on_and_a_report_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, int]] = []

    def perform(system: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
        started.append((system, seed))
        return cell(system, seed, [0.5] * steps)

    def run(*arguments: str) -> dict[str, Any]:
        output = tmp_path / "agent.json"
        command = ["agent.py", "--steps", "4", "--output", str(output), "--work", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        agent.main()
        return dict(json.loads(output.read_text()))

    monkeypatch.setattr(agent, "perform", perform)
    monkeypatch.setattr(agent, "make_inputs", lambda work: None)
    run("--seeds", "0")
    assert started == [("grpo", 0), ("trace", 0), ("turn", 0)]
    record = run("--seeds", "0", "1")
    assert started[3:] == [("grpo", 1), ("trace", 1), ("turn", 1)]
    assert record["seeds"] == [0, 1] and len(record["raw"]["cells"]) == 6
    run("--seeds", "0", "1", "--report")
    record = run("--seeds", "1", "--report")
    assert len(started) == 6
    assert record["seeds"] == [1] and len(record["raw"]["cells"]) == 6, "runs that nobody asked for stay"


def test_a_system_with_other_options_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = json.loads(agent.OUTPUT.read_text())
    assert set(committed["raw"]["cells"]) == {
        agent.cell_name(system, seed, committed["settings"]["steps"])
        for system in agent.SYSTEMS
        for seed in committed["seeds"]
    }
    started: list[int] = []

    def perform(system: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
        started.append(seed)
        return cell(system, seed, [0.5] * steps)

    monkeypatch.setattr(agent, "perform", perform)
    monkeypatch.setattr(agent, "make_inputs", lambda work: None)
    command = ["agent.py", "--systems", "turn", "--seeds", "3", "--output", str(tmp_path / "agent.json")]
    monkeypatch.setattr(sys, "argv", [*command, "--work", str(tmp_path)])
    agent.main()
    other = agent.System(agent.SYSTEMS["turn"].knobs, ("+algorithm.rredcot.lam=0.5",))
    monkeypatch.setitem(agent.SYSTEMS, "turn", other)
    for _ in range(2):
        agent.main()
    assert started == [3, 3]
    cells = json.loads((tmp_path / "agent.json").read_text())["raw"]["cells"]
    assert sorted("lam=0.5" in name for name in cells) == [False, True]


def test_every_system_sets_knobs_of_the_script() -> None:
    text = (agent.RECIPE / "run_tiny_tool_user_cpu.sh").read_text()
    knobs = {name for system in agent.SYSTEMS.values() for name in system.knobs}
    assert knobs == {"ADV_ESTIMATOR", "SEGMENTER"}
    assert all(f"{name}=${{{name}:-" in text for name in knobs)


def test_a_run_that_fails_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "run_tiny_tool_user_cpu.sh"
    script.write_text("echo broken; exit 3\n")
    monkeypatch.setattr(agent, "RECIPE", tmp_path)
    with pytest.raises(RuntimeError, match=r"turn, seed 5: exit code 3; log: .*turn_5.log"):
        agent.perform("turn", 5, 2, tmp_path)
    assert (tmp_path / "turn_5.log").read_text() == "broken\n"
