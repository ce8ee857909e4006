"""What would take credit from a run without a word is refused, or warned of."""

from __future__ import annotations

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass

from rredcot_plugin.integrations.verl.advice import warnings_of
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.integrations.verl.start import check_run
from tests.contract.test_verl_options import verl_config


@pytest.mark.parametrize("value_estimator", ["critic", "mixture"])
@pytest.mark.parametrize("enable", ["null", "False"])
def test_a_critic_that_is_read_must_be_there(value_estimator: str, enable: str) -> None:
    """verl starts one for estimators of its own alone; without it every value would be the group's mean."""
    options = [f"+algorithm.rredcot.value_estimator={value_estimator}"]
    if value_estimator == "mixture":
        options.append("+algorithm.rredcot.value_kwargs.estimators=[support,critic]")
    said = f"critic.enable={enable.replace('null', 'None')}: .*value_estimator={value_estimator} reads a critic"
    with pytest.raises(ValueError, match=said):
        check_run(verl_config(f"critic.enable={enable}", *options))
    assert check_run(verl_config("critic.enable=True", *options)) is not None


@pytest.mark.parametrize(("mode", "keeps"), [("vanilla", True), ("gspo", True), ("geo_mean", False)])
def test_which_losses_of_verls_keep_the_credit_of_segments(mode: str, keeps: bool) -> None:
    actors = "actor_rollout_ref.actor"
    config = verl_config(
        f"{actors}.policy_loss.loss_mode={mode}",
        f"{actors}.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.n=8",
    )
    warned = [text for text in warnings_of(config, read_settings(config)) if "credit of segments is lost" in text]
    assert bool(warned) is not keeps
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    log_probs = torch.zeros(1, 4, requires_grad=True)
    credit = torch.tensor([[2.0, 2.0, -1.0, -1.0]])
    loss, _ = get_policy_loss_fn(mode)(
        torch.zeros(1, 4), log_probs, credit, torch.ones(1, 4), actor.loss_agg_mode, actor
    )
    loss.backward()
    assert (len(set(log_probs.grad[0].tolist())) == 2) is keeps


def test_a_loss_over_whole_traces_is_no_matter_without_segments() -> None:
    words = ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "actor_rollout_ref.rollout.n=8")
    config = verl_config(*words, "+algorithm.rredcot.segmenter=none")
    assert not [text for text in warnings_of(config, read_settings(config)) if "credit of segments" in text]
