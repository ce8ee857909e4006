"""recipes/agent: the tiny tool user, warmed up here, learns through verl's own tool agent loop with a segment per turn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from tests.e2e.harness import Inputs, Run, train
from tests.e2e.telling_calculator import WORTH
from tests.e2e.watched_advantages import FILE

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("tool_user")]

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "recipes/agent"
STEPS = 18
CALLED = re.compile(r'\{"expression": "([^"]*)"\}\}</tool_call>\ntool\n([^\n]*)\nassistant\n')


@pytest.fixture(scope="module")
def tool_user(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the recipe's own script, from the warm-up on; all tests look at it."""
    folder = tmp_path_factory.mktemp("agent")
    model, data, run = folder / "model", folder / "data", folder / "run"
    sizes = ("--max-rows", "256", "--val-size", "8")
    for command in (
        ("warm_up.py", "--out", str(model)),
        ("prepare_data.py", "--source", "word-problems", "--out", str(data), *sizes),
    ):
        subprocess.run([sys.executable, str(AGENT / command[0]), *command[1:]], check=True, timeout=600)
    return train(
        Inputs(model, data / "train.parquet", data / "val.parquet", AGENT / "reward.py"),
        run,
        f"+algorithm.rredcot.dump_dir={run}/dump",
        f"trainer.rollout_data_dir={run}/rollouts",
        "trainer.val_before_train=False",
        script=AGENT / "run_tiny_tool_user_cpu.sh",
        TRAIN_BATCH_SIZE="8",
        ROLLOUT_N="8",
        MICRO_BATCH_SIZE="64",
        TOTAL_STEPS=str(STEPS),
        TEST_FREQ="-1",
        VERL_USE_EXTERNAL_MODULES="tests.e2e.watched_advantages",
        **{FILE: str(folder / "advantages.jsonl")},
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_it_learns(tool_user: Run) -> None:
    assert tool_user.code == 0, tool_user.tail()
    assert sorted(tool_user.steps) == list(range(1, STEPS + 1))
    rewards = [tool_user.steps[step]["critic/score/mean"] for step in range(1, STEPS + 1)]
    quarter = STEPS // 4
    first, last = sum(rewards[:quarter]) / quarter, sum(rewards[-quarter:]) / quarter
    assert 0.1 < first < 0.8
    assert last > first + 0.1, rewards


def test_the_tool_was_really_called(tool_user: Run) -> None:
    """Every reply in the rollouts is what the calculator says to the call before it."""
    sys.path.insert(0, str(AGENT))
    try:
        from arithmetic import calculate
    finally:
        sys.path.remove(str(AGENT))
    rollouts = rows_of(tool_user.folder / "rollouts")
    assert len(rollouts) == 64 * STEPS
    calls = [found for row in rollouts for found in CALLED.findall(row["output"])]
    assert len(calls) > len(rollouts)
    assert all(calculate(expression) == reply for expression, reply in calls)
    for step in tool_user.steps.values():
        assert step["num_turns/max"] > 4


def test_what_the_tool_said_gets_no_credit(tool_user: Run) -> None:
    """In every estimate there are masked tokens between the model's own, and their advantage is exactly 0."""
    lines = (tool_user.folder.parent / "advantages.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == STEPS
    assert all(line["gaps"] > 64 and line["masked"] == 0 and line["own"] > 0 for line in found)


def test_the_credit_of_turns_can_be_read(tool_user: Run, tmp_path: Path) -> None:
    traces = rows_of(tool_user.folder / "dump")
    assert len(traces) == 64 * STEPS
    segments = [segment for trace in traces for segment in trace["segments"]]
    assert not any(word in segment["text"] for segment in segments for word in ("\ntool\n", "\nassistant\n"))
    calling = [sum("<tool_call>" in segment["text"] for segment in trace["segments"]) for trace in traces]
    assert sum(count == 2 for count in calling) > len(traces) / 3, "three of four kinds of problems need two calls"
    for trace in traces:
        assert sum(s["reward"] for s in trace["segments"]) == pytest.approx(trace["reward"], abs=1e-4)
    assert any(segment["reward"] < -0.1 for segment in segments if "<tool_call>" in segment["text"])
    for step in tool_user.steps.values():
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert step["rredcot/probes/in_pass/mean"] == 1
    page = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", str(tool_user.folder / "dump"), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert f"{64 * STEPS} traces in {8 * STEPS} groups" in page.read_text().replace(",", "")


def two_steps(tool_user: Run, folder: Path, estimator: str, *overrides: str) -> list[dict[str, Any]]:
    """Two more steps of the same model with another value estimator; the traces that were dumped."""
    own = tool_user.folder.parent
    run = train(
        Inputs(own / "model", own / "data/train.parquet", own / "data/val.parquet", AGENT / "reward.py"),
        folder,
        f"+algorithm.rredcot.value_estimator={estimator}",
        f"+algorithm.rredcot.dump_dir={folder}/dump",
        "trainer.val_before_train=False",
        *overrides,
        script=AGENT / "run_tiny_tool_user_cpu.sh",
        TRAIN_BATCH_SIZE="4",
        ROLLOUT_N="4",
        TEST_FREQ="-1",
    )
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == [1, 2]
    for step in run.steps.values():
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert step["rredcot/probes/per_trace/mean"] == 0
        assert step.get("rredcot/fallback/no_state_value/mean", 0) == 0
    return rows_of(folder / "dump")


@pytest.mark.nightly
def test_what_a_tool_says_of_the_state_is_its_value(tool_user: Run, tmp_path: Path) -> None:
    """Through verl's own tool loop, whose tools write into its ``extra_fields``."""
    tools = tmp_path / "tools.yaml"
    named = "tests.e2e.telling_calculator.TellingCalculator"
    tools.write_text((AGENT / "calculator.yaml").read_text().replace("calculator.Calculator", named))
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    traces = two_steps(tool_user, tmp_path / "run", "environment", f"{key}={tools}")
    checked = 0
    for trace in traces:
        calls = 0
        for segment in trace["segments"]:
            calls += "observation" in segment  # a boundary within a turn has the number of the turn
            if calls:
                assert segment["value"] == pytest.approx(WORTH * calls)
                checked += 1
    assert checked > len(traces)


def done_before(trace: dict[str, Any], number: int) -> tuple[str, ...]:
    """Calls before a segment, and what was answered."""
    found = []
    for segment in trace["segments"][: number + 1]:
        found += [segment["observation"]] if "observation" in segment else []
        found += [segment["text"]] if "<tool_call>" in segment["text"] else []
    own = "<tool_call>" in trace["segments"][number]["text"]
    return tuple(found[:-1] if own else found)


@pytest.mark.nightly
def test_siblings_that_called_alike_are_worth_alike(tool_user: Run, tmp_path: Path) -> None:
    traces = two_steps(tool_user, tmp_path / "run", "siblings", "+algorithm.rredcot.calibrate=none")
    seen = 0
    for trace in traces:
        others = [one for one in traces if one["uid"] == trace["uid"] and one is not trace]
        states = [{done_before(one, number) for number, _ in enumerate(one["segments"])} for one in others]
        mean = sum(one["reward"] for one in others) / len(others)
        for number, segment in enumerate(trace["segments"][1:], 1):
            own = done_before(trace, number)
            same = [one["reward"] for one, came_by in zip(others, states, strict=True) if own in came_by]
            assert segment["value"] == pytest.approx((sum(same) + mean) / (len(same) + 1), abs=1e-4)
            seen += bool(own and same)
    assert seen > 4


@pytest.mark.nightly
def test_continuations_play_the_tools_again(tool_user: Run, tmp_path: Path) -> None:
    """The states before the first call, between calls and after them; two continuations of each."""
    run = tmp_path / "run"
    options = ("+algorithm.rredcot.value_kwargs.samples=2", "+algorithm.rredcot.value_kwargs.concurrency=8")
    traces = two_steps(tool_user, run, "monte_carlo", *options)
    for line in rows_of(run):  # verl's own log
        step = line["data"]
        assert step["rredcot/monte_carlo/left_out/mean"] == step["rredcot/monte_carlo/failed/mean"] == 0
        assert 0 < step["rredcot/monte_carlo/continuations/mean"] <= 2 * 3
        assert step["rredcot/monte_carlo/tokens/mean"] > step["rredcot/monte_carlo/continuations/mean"]
    values = {}
    for trace in traces:
        for number, segment in enumerate(trace["segments"][1:], 1):
            assert segment["value"] in (0, 0.5, 1)
            values[trace["uid"], done_before(trace, number)] = segment["value"]
    assert len(values) > 8
    assert len(set(values.values())) > 1
