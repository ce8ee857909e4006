"""What in a run leaves the method without something it can use; the run goes on all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from rredcot_plugin.biases import biases_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.advice import (
    entropies_later,
    few_segments,
    loses_credit,
    no_siblings,
    without_log_probs,
)
from rredcot_plugin.integrations.verl.estimator import RED
from rredcot_plugin.integrations.verl.settings import bypasses
from rredcot_plugin.values.base import proposal_limits, scores_read

logger = logging.getLogger(__name__)


def warn_of_pointless(config: Any, settings: RRedCoTConfig) -> None:
    """Log every warning at the start of a run; errors as ``warnings_of``."""
    for text in warnings_of(config, settings):
        logger.warning("rredcot: %s", text)


def warnings_of(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    """One sentence or two per warning.

    Raises:
        ValueError: the segmenter cannot do without log-probs, and the rollout engine records none.
    """
    yield from _of_the_group(config, settings)
    yield from _of_bias(config, settings)
    yield from _of_the_loss(config, settings)
    yield from _of_the_outcomes_scale(config, settings)
    yield from _of_unrecorded_log_probs(config, settings)


def check_log_probs(config: Any, settings: RRedCoTConfig) -> None:
    """The segmenter must get the log-probs that it reads.

    Raises:
        ValueError: it cannot do without, and the rollout engine records none.
    """
    tuple(_of_unrecorded_log_probs(config, settings))


def notes_of(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    """What is as it should be and yet good to know; `rredcot explain` prints it, a run does not."""
    if config.algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=True: the penalty is not redistributed; it stays on the segment whose tokens incur it"
        )
    if text := entropies_later(settings):
        yield text
    has_turns = config.actor_rollout_ref.rollout.multi_turn.enable
    turns = None if has_turns else "actor_rollout_ref.rollout.multi_turn.enable"
    if text := few_segments(settings, config.data.max_response_length, "data.max_response_length=", turns):
        yield text


def _of_the_group(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    if config.actor_rollout_ref.rollout.n == 1 and (
        text := no_siblings("actor_rollout_ref.rollout.n=1", settings)
    ):
        yield text
    algorithm = config.algorithm
    read_by_red = str(algorithm.adv_estimator) == RED and bool(config.critic.enable)
    for key in ("lam", "gamma"):
        if algorithm.get(key, 1.0) != 1.0 and not read_by_red:
            instead = "algorithm.rredcot.lam counts" if key == "lam" else "credit is not discounted"
            yield f"algorithm.{key}={algorithm[key]} is verl's own and is not read here; {instead}"


def _of_bias(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    yield from biases_of(settings)
    yield from _of_weights(config, settings)


def _of_the_loss(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    mode = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss.loss_mode")
    if mode == "geo_mean" and settings.segmenter != "none":
        yield loses_credit("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "vanilla or gspo")


def _of_weights(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    """Probes under other weights than ``old_log_probs``; with any other setting both run under the same."""
    mode = config.trainer.v1.trainer_mode
    sync_step = OmegaConf.select(config, f"trainer.v1.{mode}.parameter_sync_step") or 1
    if not bypasses(config) or not config.trainer.use_v1 or mode == "sync":
        return
    if not proposal_limits(settings.build_value_estimator()):
        return
    again = ""
    if sync_step > 1:
        again = f", the more so as trainer.v1.{mode}.parameter_sync_step={sync_step} updates them within a step"
    yield (
        "algorithm.rollout_correction.bypass_mode=True takes old_log_probs from the rollout engine, but probes run under the "
        f"actor's weights, which with trainer.v1.trainer_mode={mode} may be newer than those that sampled{again}: values are "
        "those of a later policy. Set bypass_mode=False to have both under the weights that the step began with"
    )


def _of_the_outcomes_scale(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    reads = scores_read(settings.build_value_estimator())
    if "reward_model" in reads and not config.reward.reward_model.enable and not config.critic.enable:
        yield (
            f"value_estimator={settings.value_estimator} compares the outcome with scores of a reward model, but the "
            "outcome comes from a reward function: unless both are on the same scale, set reward.reward_model.enable=True, or "
            "critic.enable=True with adv_estimator=red"
        )


def _of_unrecorded_log_probs(config: Any, settings: RRedCoTConfig) -> Iterator[str]:
    key = "actor_rollout_ref.rollout.calculate_log_probs"
    if config.actor_rollout_ref.rollout.calculate_log_probs:
        return
    if text := without_log_probs(settings, "algorithm.rredcot.segmenter=", f"{key}=False", f"{key}=True"):
        yield text
