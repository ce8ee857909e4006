"""Sizes and rewards that verl trains with are not refused, even where a CPU cannot try them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rredcot_plugin.dry_run.rehearsal import Rehearsal
from tests.unit.test_dry_run import broken, no_data_and_no_network, recipe, rehearse, text_of  # noqa: F401  fixtures

ACTOR = "actor_rollout_ref.actor"
UNEVEN = f"{ACTOR}.ppo_mini_batch_size=6"


def test_a_step_that_verl_pads(recipe: Path, tmp_path: Path) -> None:
    words = (UNEVEN, f"{ACTOR}.ppo_micro_batch_size_per_gpu=2")
    found = text_of(rehearse(recipe, tmp_path, *words), "batch")
    assert found.startswith(
        "8 prompts x 4 = 32 responses per step, which verl pads to 48, 24 per update; 2 GPUs, 24"
    )


@pytest.mark.parametrize("trainer", ["trainer.use_v1=False", "trainer.v1.trainer_mode=separate_async"])
def test_a_step_that_no_trainer_pads(recipe: Path, tmp_path: Path, trainer: str) -> None:
    words = (UNEVEN, f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", trainer)
    message = broken(recipe, tmp_path, *words)
    assert "data.train_batch_size = 8 is not a multiple of actor.ppo_mini_batch_size = 6" in message


@pytest.mark.parametrize("key", ["fsdp_config.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"])
def test_ranks_that_share_a_sequence(recipe: Path, tmp_path: Path, key: str) -> None:
    split = (f"{ACTOR}.{key}=2", "actor_rollout_ref.model.use_remove_padding=True")
    long = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=100")
    assert text_of(rehearse(recipe, tmp_path, *split, *long), "batch").endswith("2 GPUs, 32 responses a rank")
    assert "actor.ppo_max_token_len_per_gpu = 100 is less than" in broken(recipe, tmp_path / "alone", *long)


def test_micro_batches_under_the_key_that_no_engine_reads(recipe: Path, tmp_path: Path) -> None:
    words = (f"{ACTOR}.ppo_micro_batch_size_per_gpu=null", f"{ACTOR}.ppo_micro_batch_size=8")
    message = broken(recipe, tmp_path, *words)
    assert (
        "actor.ppo_micro_batch_size_per_gpu is not given" in message and "actor.ppo_micro_batch_size;" in message
    )


def test_rewards_of_a_model_are_left_out(recipe: Path, tmp_path: Path) -> None:
    words = (
        "reward.custom_reward_function.path=null",
        "reward.reward_model.enable=True",
        "reward.reward_model.model_path=/rm",
    )
    rehearsal = Rehearsal(recipe, words, tmp_path / "out", 2)
    findings = list(rehearsal.run(lambda progress: None))
    assert text_of(findings, "reward", "note") == "reward.reward_model.model_path=/rm: not tried here"
    assert text_of(findings, "training", "note").startswith("nothing was trained")
    assert "at most" in text_of(findings, "probes"), "everything else is said"
