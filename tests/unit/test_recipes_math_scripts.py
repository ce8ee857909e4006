"""The scripts and pages of the math recipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rredcot_plugin.dry_run.batches import check_batches
from rredcot_plugin.dry_run.errors import RecipeError
from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import (
    RECIPES,
    Argv,
    Compose,
    argv_reader,
    check,
    let_vllm_know_ranks,
    verls_configuration,
)

SCRIPTS = sorted([*MATH.glob("run_*.sh"), *MATH.glob("*.sbatch")])


@pytest.fixture(scope="module")
def argv_of(tmp_path_factory: pytest.TempPathFactory) -> Argv:
    return argv_reader(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    with verls_configuration() as build:
        yield build


@pytest.fixture
def vllm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    let_vllm_know_ranks(monkeypatch)


@pytest.mark.usefixtures("vllm_ranks")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_composes_with_verls_configuration(script: Path, argv_of: Argv, compose: Compose) -> None:
    from rredcot_plugin.integrations.verl.settings import read_settings, why_not_in_pass

    config = compose(argv_of(script))
    check(config)
    assert config.algorithm.adv_estimator == "rredcot"
    assert Path(config.reward.custom_reward_function.path).is_file()
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    settings = read_settings(config)
    settings.build_segmenter()
    settings.build_value_estimator()
    assert (why_not_in_pass(config) is None) == ("megatron" not in script.name)


@pytest.mark.usefixtures("vllm_ranks")
def test_the_baseline_composes_and_overrides_come_last(argv_of: Argv, compose: Compose) -> None:
    script = MATH / "run_qwen3_4b_fsdp2_vllm.sh"
    config = compose(argv_of(script, "trainer.project_name=last", ADV_ESTIMATOR="grpo"))
    check(config)
    assert (config.algorithm.adv_estimator, config.trainer.project_name) == ("grpo", "last")
    assert "rredcot" not in config.algorithm


def test_these_checks_see_mistakes(argv_of: Argv, compose: Compose) -> None:
    from hydra.errors import ConfigCompositionException

    script = MATH / "run_qwen3_4b_fsdp2_vllm.sh"
    with pytest.raises(ConfigCompositionException):
        compose([*argv_of(script), "actor_rollout_ref.actor.ppo_mini_batchsize=32"])
    with pytest.raises(RecipeError, match="is not a multiple of data-parallel ranks = 7"):
        check_batches(compose([*argv_of(script), "trainer.n_gpus_per_node=7"]))


def test_the_baseline_differs_in_the_estimator_only(argv_of: Argv) -> None:
    for script in SCRIPTS:
        ours, baseline = argv_of(script), argv_of(script, ADV_ESTIMATOR="grpo")
        ours = [item for item in ours if not item.startswith("+algorithm.rredcot")]
        assert [item.replace("rredcot", "grpo") for item in ours] == [
            item.replace("rredcot", "grpo") for item in baseline
        ], script.name


def test_several_nodes(argv_of: Argv, compose: Compose) -> None:
    config = compose(argv_of(MATH / "run_qwen3_4b_fsdp2_vllm_multinode.sh", NNODES="4"))
    assert (config.trainer.nnodes, config.data.train_batch_size) == (4, 256)
    check_batches(config)


@pytest.mark.parametrize("name", ["run_qwen3_4b_fsdp2_vllm_multinode.sh", "run_qwen3_4b_slurm.sbatch"])
def test_processes_of_a_running_cluster_have_the_scripts_environment(
    name: str, argv_of: Argv, compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's own program hands them to Ray, whose processes began before the script has set anything."""
    import ray
    from verl.trainer import main_ppo

    begun: list[dict[str, Any]] = []

    def init(**given: Any) -> None:
        begun.append(given)
        raise InterruptedError

    monkeypatch.delenv("NCCL_DEBUG", raising=False)  # which verl would leave as it is
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    for knobs in ({"OUT_DIR": "/shared/out"}, {"TENSORBOARD_DIR": "/shared/tb", "RREDCOT_MATH_TIMEOUT": "9"}):
        with pytest.raises(InterruptedError):
            main_ppo.run_ppo(compose(argv_of(MATH / name, **knobs)), None)
    first, second = (ray.runtime_env.RuntimeEnv(**given["runtime_env"])["env_vars"] for given in begun)
    assert first["TENSORBOARD_DIR"] == "/shared/out/tensorboard"
    assert "RREDCOT_MATH_TIMEOUT" not in first and "RREDCOT_MATH_WORKERS" not in second
    assert (second["TENSORBOARD_DIR"], second["RREDCOT_MATH_TIMEOUT"]) == ("/shared/tb", "9")
    assert "NCCL_DEBUG" in first, "beside verl's own"


def test_multinode_without_a_cluster_says_so(tmp_path: Path) -> None:
    script = MATH / "run_qwen3_4b_fsdp2_vllm_multinode.sh"
    done = subprocess.run(["bash", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Ray cluster answers" in done.stderr


def test_every_script_is_executable_and_on_the_page() -> None:
    page = (MATH / "README.md").read_text()
    for script in SCRIPTS:
        assert f"({script.name})" in page, script.name
        assert script.suffix == ".sbatch" or os.access(script, os.X_OK), script.name


def test_links_of_the_pages_lead_somewhere() -> None:
    import re

    for page in (RECIPES / "README.md", MATH / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
