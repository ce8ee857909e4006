"""What is said of a run with one rollout per prompt, where nothing comes from siblings."""

from __future__ import annotations

import pytest

from rredcot_plugin.integrations.verl.advice import warnings_of
from rredcot_plugin.integrations.verl.settings import read_settings
from tests.contract.test_verl_options import verl_config

ALONE = "actor_rollout_ref.rollout.n=1 leaves no siblings: "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "only the ground truth is proposed, and baselines come from the other prompts of the step"),
        (["proposals=group"], "nothing is probed, and baselines come from"),
        (["proposals=reference"], "baselines come from"),
        (["preset=lean"], "baselines come from the other prompts"),
        (["preset=lean", "baseline=token"], "baseline=token is 0: use least_variance or trace"),
        (["segmenter=none"], "nothing is subtracted from the reward, as in GRPO"),
        (["value_estimator=monte_carlo"], "with baseline=value the first segment is measured from 0"),
    ],
)
def test_of_one_rollout_it_is_said_what_its_own_options_miss(options: list[str], message: str) -> None:
    config = verl_config(*(f"+algorithm.rredcot.{option}" for option in options))
    assert next(warnings_of(config, read_settings(config))).startswith(ALONE + message)


def test_a_critic_misses_no_siblings() -> None:
    config = verl_config("algorithm.adv_estimator=rredcot_ppo")
    assert not [text for text in warnings_of(config, read_settings(config)) if "siblings" in text]
