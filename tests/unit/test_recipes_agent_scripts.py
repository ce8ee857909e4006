"""recipes/agent: both scripts against verl's own configuration, and what the dry run makes of an agent's tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rredcot_plugin.dry_run import tools
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.findings import Finding
from rredcot_plugin.dry_run.launch import find_launch
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.sandbox import available
from tests.unit.agent_recipe import AGENT
from tests.unit.recipe_scripts import Compose, argv_reader, check, verls_configuration

TINY, QWEN = AGENT / "run_tiny_tool_user_cpu.sh", AGENT / "run_qwen3_4b_tools_fsdp2_vllm.sh"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    with verls_configuration() as build:
        yield build


def launch_of(script: Path, scratch: Path, *overrides: str, **knobs: str) -> Any:
    scratch.mkdir(exist_ok=True)
    (scratch / "any").touch()
    here = str(scratch / "any")
    given = {"TRAIN_FILE": here, "VAL_FILE": here, "MODEL_PATH": here, "OUT_DIR": "/out", **knobs}
    return find_launch(script, overrides, scratch, given)


@pytest.mark.parametrize(("script", "tool", "most"), [(TINY, "calculator", 4), (QWEN, "python_tool", 8)])
@pytest.mark.parametrize("estimator", ["rredcot", "grpo"])
def test_verl_gets_its_own_agent_loop_with_the_tool(
    script: Path, tool: str, most: int, estimator: str, compose: Compose, tmp_path: Path
) -> None:
    launch = launch_of(script, tmp_path, ADV_ESTIMATOR=estimator)
    config = compose(launch.overrides)
    rollout = config.actor_rollout_ref.rollout
    assert config.algorithm.adv_estimator == estimator
    assert rollout.agent.default_agent_loop == "tool_agent"
    assert (rollout.multi_turn.enable, rollout.multi_turn.format) == (True, "hermes")
    assert rollout.multi_turn.tool_config_path == str(AGENT / f"{tool}.yaml")
    assert config.data.tool_config_path == rollout.multi_turn.tool_config_path, (
        "prompts are measured with the tools"
    )
    assert rollout.multi_turn.max_assistant_turns == most
    assert 0 < rollout.multi_turn.max_tool_response_length <= 2048
    assert launch.environment["PYTHONPATH"].split(":")[0] == str(AGENT)
    if estimator == "rredcot":
        settings = read_settings(config)
        assert settings.segmenter == ("turn" if script == TINY else "nested")


def test_the_baseline_differs_in_the_estimator_alone(tmp_path: Path) -> None:
    ours, grpo = (
        {
            item.replace(str(tmp_path / name), "")
            for item in launch_of(TINY, tmp_path / name, ADV_ESTIMATOR=name).overrides
        }
        for name in ("rredcot", "grpo")
    )
    assert ours - grpo == {"algorithm.adv_estimator=rredcot", "+algorithm.rredcot.segmenter=turn"}
    assert not grpo - ours, "train_cpu.sh's own default is grpo"


def test_the_large_recipe_passes_verls_validation(compose: Compose, tmp_path: Path) -> None:
    argv = argv_reader(tmp_path)
    config = compose(argv(QWEN))
    check(config)
    settings = read_settings(config)
    kept = {key: settings.segmenter_kwargs[key] for key in ("max_segments", "levels")}
    assert kept == {"max_segments": 64, "levels": ["turn", "sentence"]}
    assert not any("levels" in item for item in argv(QWEN, SEGMENTER="turn"))


def config_of(compose: Compose, tmp_path: Path, *overrides: str) -> tuple[Any, Any]:
    launch = launch_of(TINY, tmp_path, *overrides)
    return compose(launch.overrides), launch.environment


def test_a_dry_run_builds_the_tools_and_knows_a_call(compose: Compose, tmp_path: Path) -> None:
    found = tools.try_tools(*config_of(compose, tmp_path))
    assert found is not None
    assert found.call == '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'
    (line,) = found.findings()
    assert line.text == "calculator; calls are read by verl's parser hermes"
    assert [f.kind for f in found.outcome({1: {"num_turns/max": 2.0}, 2: {"num_turns/max": 4.0}})] == ["ok"]
    assert [f.kind for f in found.outcome({1: {"num_turns/max": 2.0}})] == ["note"]


def test_calls_of_other_parsers_are_not_made_up(compose: Compose, tmp_path: Path) -> None:
    found = tools.try_tools(*config_of(compose, tmp_path, f"{ROLLOUT}.multi_turn.format=gemma4"))
    assert found is not None and found.call is None
    assert [finding.kind for finding in found.findings()] == ["ok", "note"]
    assert list(found.outcome({1: {"num_turns/max": 2.0}})) == []


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (f"{ROLLOUT}.multi_turn.format=herme", ("format=herme", "hermes")),
        (f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent", ("calls none", "tool_agent")),
        (f"{ROLLOUT}.multi_turn.tool_config_path=/absent.yaml", ("tool_config_path=/absent.yaml", "PYTHONPATH")),
    ],
)
def test_tools_that_cannot_work_end_a_dry_run(
    compose: Compose, tmp_path: Path, override: str, parts: tuple[str, ...]
) -> None:
    config, environment = config_of(compose, tmp_path, override)
    with pytest.raises(RecipeError) as caught:
        tools.try_tools(config, environment)
    assert all(part in str(caught.value) for part in parts)


def test_a_recipe_without_tools_has_none(compose: Compose, tmp_path: Path) -> None:
    config, environment = config_of(compose, tmp_path, f"{ROLLOUT}.multi_turn.tool_config_path=null")
    assert tools.try_tools(config, environment) is None


@pytest.mark.skipif(
    available().means is None and not os.environ.get("RREDCOT_REQUIRE_SANDBOX"), reason=str(available())
)
def test_a_machine_without_a_sandbox_is_told_before_it_trains(compose: Compose, tmp_path: Path) -> None:
    launch = launch_of(QWEN, tmp_path, RREDCOT_SANDBOX="strongest")
    with pytest.raises(RecipeError, match="strongest"):
        tools.try_tools(compose(launch.overrides), launch.environment)
    found = tools.try_tools(compose(launch.overrides), {**launch.environment, "RREDCOT_SANDBOX": "strong"})
    assert found is not None
    assert next(found.findings()) == Finding("tools", "python; calls are read by verl's parser hermes")
