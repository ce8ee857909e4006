"""What an engine or a trainer of verl cannot do with credit is refused before anything is built."""

from __future__ import annotations

import inspect

import pytest
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.one_step_off_policy import main_ppo as one_step
from verl.utils import config as verl_utils

from rredcot_plugin.integrations.verl.start import check_run
from tests.contract.test_verl_options import verl_config

CONFIDENCE = "+algorithm.rredcot.value_estimator=confidence"


def replaying(engine: str, mode: str, *overrides: str) -> list[str]:
    """Overrides of a run whose actor replays experts."""
    key = f"actor_rollout_ref.actor.{engine}.router_replay.mode"
    return [f"model_engine={engine}", f"{key}={mode}", *overrides]


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
@pytest.mark.parametrize("options", [[], ["+algorithm.rredcot.probe_backend=batched"]], ids=["auto", "named"])
def test_experts_of_the_rollout_are_not_replayed_in_probes(engine: str, options: list[str]) -> None:
    key = rf"actor_rollout_ref\.actor\.{engine}\.router_replay\.mode"
    ways_out = rf"{key}=R2 or {key}=disabled, or \+algorithm\.rredcot\.value_estimator=confidence"
    with pytest.raises(ValueError, match=rf"^{key}=R3 .*{ways_out}"):
        check_run(verl_config(*replaying(engine, "R3", *options)))


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("R2", []),
        ("disabled", []),
        ("R3", [CONFIDENCE]),
        ("R3", [CONFIDENCE, "+algorithm.rredcot.probe_backend=batched"]),
        ("R3", ["+algorithm.rredcot.segmenter=none"]),
        ("R3", ["algorithm.adv_estimator=grpo"]),
    ],
)
def test_the_ways_out_of_replayed_experts_are_open(engine: str, mode: str, options: list[str]) -> None:
    check_run(verl_config(*replaying(engine, mode, *options)))


# ---- experimental trainers

APART = ("+rollout.nnodes=1", "+rollout.n_gpus_per_node=1", "actor_rollout_ref.hybrid_engine=False")
REFUSED = (
    r"hybrid_engine=False with rollout\.nnodes=1: .*one_step_off_policy and fully_async_policy are not supported with "
    r"algorithm\.adv_estimator=rredcot; .*trainer_mode=separate_async or colocate_async.*\(grpo\)"
)


def test_trainers_that_generate_elsewhere_are_refused_at_the_start() -> None:
    """That of one step calls ``validate_config``, ours by the name it has imported, before it loads anything."""
    with pytest.raises(ValueError, match=REFUSED):
        check_run(verl_config(*APART))
    assert one_step.validate_config is verl_utils.validate_config
    source = inspect.getsource(one_step)
    assert source.index("        validate_config(") < source.index("copy_to_local(\n")


def test_other_trainers_and_estimators_are_not_refused() -> None:
    assert check_run(verl_config(*APART, "algorithm.adv_estimator=grpo")) is None
    separate = ("trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.hybrid_engine=False")
    assert check_run(verl_config(*separate)) is not None
    assert check_run(verl_config("+rollout.nnodes=1")) is not None


def test_the_fully_asynchronous_trainer_refuses_before_it_has_workers() -> None:
    """Its main program has no ``validate_config``, and its ``__init__`` does not call that of its base."""
    cls = FullyAsyncTrainer.__ray_metadata__.modified_class
    with pytest.raises(ValueError, match=REFUSED):
        cls(verl_config(*APART), tokenizer=None, role_worker_mapping={}, resource_pool_manager=None)
    other = object.__new__(cls)
    other.config = verl_config(*APART, "algorithm.adv_estimator=grpo")
    other._init_dump_executor()
    assert other._dump_futures == []
