"""Read and check the options before anything is built, and decide where the probes can run."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import verl
from omegaconf import OmegaConf

from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl import SUPPORTED_VERL
from rredcot_plugin.integrations.verl.estimator import GROUP, NAMES, PPO, RED
from rredcot_plugin.segmenters import CutSegmenter
from rredcot_plugin.values.base import scores_read, sees_outcome

logger = logging.getLogger(__name__)


EVERY_TOKEN = {"tokens": 1, "max_segments": 1_000_000, "answer_markers": []}
DEFAULTS: dict[str, dict[str, Any]] = {
    GROUP: {},
    PPO: {"value_estimator": "critic", "prior_from_group": False, "scale": "whiten"},
    RED: {"value_estimator": "reward_model", "segmenter": "fixed", "segmenter_kwargs": EVERY_TOKEN},
}
"""What an estimator's name changes of the defaults of ``RRedCoTConfig``."""

READS = {PPO: "critic", RED: "reward_model"}
"""What an estimator's name promises to read."""


def is_ours(config: Any) -> bool:
    return str(config.algorithm.adv_estimator) in NAMES


def read_settings(config: Any) -> RRedCoTConfig:
    """``algorithm.rredcot`` of a verl config as ``RRedCoTConfig``.

    ``scale`` follows ``algorithm.norm_adv_by_std_in_grpo`` where it is not given; ``rredcot_ppo`` and ``red``
    come with defaults of their own.

    Raises:
        ValueError: an option that is not allowed, or a verl version that is not supported.
    """
    if not verl.__version__.startswith(SUPPORTED_VERL):
        raise ValueError(
            f"verl {verl.__version__} is not supported by this version of rredcot: it needs verl=={SUPPORTED_VERL}"
        )
    name = str(config.algorithm.adv_estimator)
    given = config.algorithm.get("rredcot", None)
    mapping: Any = OmegaConf.to_container(given, resolve=True) if given is not None else {}
    settings = RRedCoTConfig.from_mapping({**DEFAULTS[name], **mapping})
    settings = _with_response_length(config, _with_reward_model(config, settings))
    needed = READS.get(name)
    if needed is not None and needed not in scores_read(settings.build_value_estimator()):
        raise ValueError(
            f"algorithm.rredcot.value_estimator={settings.value_estimator}: algorithm.adv_estimator={name} takes its "
            f"values from {DEFAULTS[name]['value_estimator']}; leave the key out, or use adv_estimator=rredcot"
        )
    if settings.scale is None:
        by_std = config.algorithm.get("norm_adv_by_std_in_grpo", True)
        settings = dataclasses.replace(settings, scale="group_std" if by_std else "none")
    return settings


def _with_reward_model(config: Any, settings: RRedCoTConfig) -> RRedCoTConfig:
    """``value_estimator: reward_model`` reads the model that verl rewards with, unless it is given another."""
    reward_model = config.reward.reward_model
    if settings.value_estimator != "reward_model" or settings.value_kwargs.get("path") or not reward_model.enable:
        return settings
    return dataclasses.replace(settings, value_kwargs={**settings.value_kwargs, "path": reward_model.model_path})


def _with_response_length(config: Any, settings: RRedCoTConfig) -> RRedCoTConfig:
    """Segments are spread over the longest response that the run allows, unless the segmenter is told otherwise."""
    length = OmegaConf.select(config, "data.max_response_length")
    given = settings.segmenter_kwargs
    if not length or "max_response_tokens" in given or not isinstance(settings.build_segmenter(), CutSegmenter):
        return settings
    return dataclasses.replace(settings, segmenter_kwargs={**given, "max_response_tokens": int(length)})


def switch_on_critic(config: Any) -> None:
    """``rredcot_ppo`` trains a critic, as ``gae`` does in verl, without ``critic.enable`` being asked for.

    Raises:
        ValueError: ``critic.enable=False`` with an estimator that reads a critic.
    """
    if str(config.algorithm.adv_estimator) != PPO:
        return
    if config.critic.enable is None:
        config.critic.enable = True
    if not config.critic.enable:
        raise ValueError(
            "critic.enable=False: algorithm.adv_estimator=rredcot_ppo takes its values from a critic; leave "
            "critic.enable out, or use adv_estimator=rredcot, which needs none"
        )


def check_estimator(config: Any, settings: RRedCoTConfig) -> None:
    """What the estimator and the baseline read must be there to be read in this run.

    Raises:
        ValueError: ``monte_carlo`` with a reward model that shares the trainer's devices; ``attention``,
            ``gradient`` or ``baseline: token`` with an engine whose log-prob pass we do not reach.
    """
    reads = scores_read(settings.build_value_estimator())
    key = f"algorithm.rredcot.value_estimator={settings.value_estimator}"
    reward_model = config.reward.reward_model
    if "monte_carlo" in reads and reward_model.enable and not reward_model.enable_resource_pool:
        raise ValueError(
            f"{key} scores continuations while the rollout server is up, which "
            "reward.reward_model.enable_resource_pool=False does not allow: give the reward model its own resource "
            "pool, or take an estimator without rollouts (support)"
        )
    reason = why_not_in_pass(config)
    if reads & {"attention", "gradient"} and reason is not None:
        raise ValueError(
            f"{key} runs inside the log-prob pass of verl's FSDP engines, which {reason} keeps it out of: change "
            "that, or take an estimator that works with any engine (support, confidence)"
        )
    if "sum_pi_squared" in needs_of(settings.build_baseline(log_probs=True)) and reason is not None:
        raise ValueError(
            f"algorithm.rredcot.baseline={settings.baseline} reads the sum of squared probabilities from the logits of "
            f"the log-prob pass of verl's FSDP engines, which {reason} keeps it out of: change that, or take a baseline "
            "that works with any engine (least_variance, trace, value)"
        )


def warn_of_pointless(config: Any, settings: RRedCoTConfig) -> None:
    """Say what in this run leaves the method without something it can use; the run goes on all the same.

    Raises:
        ValueError: the segmenter cannot do without log-probs, and the rollout engine records none.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.n == 1:
        logger.warning(
            "rredcot: actor_rollout_ref.rollout.n=1 leaves no siblings to propose answers or a baseline: only the "
            "ground truth is proposed, and the prior is 0 (GRPO's convention); use n >= 2"
        )
    if sees_outcome(settings.build_value_estimator()) and settings.lam == 1.0 and settings.mode == "segment_gae":
        logger.warning(
            "rredcot: value_estimator=%s looks at the outcome of the very trace it values, so the policy gradient is "
            "biased with lam=1 too; support, self_normalized, confidence and monte_carlo are not",
            settings.value_estimator,
        )
    v1 = config.trainer.v1
    sync_step = v1.get(v1.trainer_mode, {}).get("parameter_sync_step", 1)
    if _bypasses(config) and sync_step > 1:
        logger.warning(
            "rredcot: algorithm.rollout_correction.bypass_mode=True takes old_log_probs from the rollout engine, but "
            "probes run under the actor's weights, which trainer.v1.%s.parameter_sync_step=%s updates within a step: "
            "from its second mini-batch on, values are those of a later policy than the one that sampled. Set "
            "bypass_mode=False to have both under the weights that the step began with",
            v1.trainer_mode,
            sync_step,
        )
    reads = scores_read(settings.build_value_estimator())
    if "reward_model" in reads and not config.reward.reward_model.enable and not config.critic.enable:
        logger.warning(
            "rredcot: value_estimator=%s compares the outcome with scores of a reward model, but the outcome comes from "
            "a reward function: unless both are on one scale, set reward.reward_model.enable=True, or "
            "critic.enable=True with adv_estimator=red",
            settings.value_estimator,
        )
    if rollout.calculate_log_probs:
        return
    segmenter, signals = settings.build_segmenter(), {"uncertainty", "log_probs"}
    if signals & set(getattr(segmenter, "needs", ())):
        raise ValueError(
            f"algorithm.rredcot.segmenter={settings.segmenter} reads log-probs of the rollout engine: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or take a segmenter that reads texts only"
        )
    if signals & set(getattr(segmenter, "uses", ())):
        logger.warning(
            "rredcot: segmenter=%s looks at the log-probs of the sampled tokens, which "
            "actor_rollout_ref.rollout.calculate_log_probs=False does not record: every keyword counts now",
            settings.segmenter,
        )


def why_not_in_pass(config: Any) -> str | None:
    """What keeps probes out of the log-prob pass of this run; None if nothing does."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if actor.strategy not in ("fsdp", "fsdp2"):
        return f"actor_rollout_ref.actor.strategy={actor.strategy}"
    sequence_parallel = actor.fsdp_config.get("ulysses_sequence_parallel_size", 1)
    if max(sequence_parallel, actor.get("ulysses_sequence_parallel_size", 1) or 1) > 1:
        return f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={sequence_parallel}"
    if model.get("use_fused_kernels", False):
        return "actor_rollout_ref.model.use_fused_kernels=True"
    if _bypasses(config):
        return "algorithm.rollout_correction.bypass_mode=True (there is no log-prob pass)"
    return None


def _bypasses(config: Any) -> bool:
    correction = config.algorithm.get("rollout_correction", None)
    return bool(correction and correction.get("bypass_mode", False))
