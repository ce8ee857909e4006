"""Read and check the options before anything is built, and decide where the probes can run."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import verl
from omegaconf import OmegaConf

from rredcot_plugin.allowed import Choice
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.choices import automatic, choose_scale
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl import SUPPORTED_VERL
from rredcot_plugin.integrations.verl.estimator import NAMES, PPO, RED
from rredcot_plugin.options import ESTIMATOR_DEFAULTS
from rredcot_plugin.presets import resolve_keys
from rredcot_plugin.registry import nearest
from rredcot_plugin.segmenters import CutSegmenter
from rredcot_plugin.values.base import scores_read, with_parts
from rredcot_plugin.values.reward_model import RewardModelEstimator

TOOL_LOOP, ONE_TURN_LOOP = "tool_agent", "single_turn_agent"
"""verl's names for its loops."""

READS = {PPO: "critic", RED: "reward_model"}
"""What an estimator's name promises to read."""

TOKEN_SCORES = frozenset({"monte_carlo", "attention", "gradient", "reward_model", "critic", "environment"})
"""The ``Rollouts.token_scores`` that a run can have."""


def is_ours(config: Any) -> bool:
    return str(config.algorithm.adv_estimator) in NAMES


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The options of a run. ``sources``: key -> where its value comes from, for what is not the default; ``choices``:
    key -> what it stands for and why, for what was left open."""

    config: RRedCoTConfig
    sources: dict[str, str]
    choices: dict[str, Choice]


def read_settings(config: Any) -> RRedCoTConfig:
    """``algorithm.rredcot`` of a verl config as ``RRedCoTConfig``; errors as ``resolve_settings``."""
    return resolve_settings(config).config


def resolve_settings(config: Any) -> Resolved:
    """``algorithm.rredcot`` of a verl config, with where each value comes from and what was chosen for the run.

    ``scale`` follows ``algorithm.norm_adv_by_std_in_grpo`` where it is not given; ``rredcot_ppo`` and ``red``
    come with defaults of their own, which a preset and explicit keys win over.

    Raises:
        ValueError: an option that is not allowed, or a verl version that is not supported.
    """
    if not verl.__version__.startswith(SUPPORTED_VERL):
        raise ValueError(
            f"verl {verl.__version__} is not supported by this version of rredcot: it needs verl=={SUPPORTED_VERL}"
        )
    name = str(config.algorithm.adv_estimator)
    given = config.algorithm.get("rredcot", None)
    mapping: Any = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else given
    mapping = {} if mapping is None else mapping
    keys, sources = resolve_keys(mapping, ESTIMATOR_DEFAULTS[name], f"algorithm.adv_estimator={name}")
    settings = RRedCoTConfig.from_keys(keys, sources)
    settings, choices = _follow_verl(config, settings)
    needed = READS.get(name)
    if needed is not None and needed not in scores_read(settings.build_value_estimator()):
        raise ValueError(
            f"algorithm.rredcot.value_estimator={settings.value_estimator} "
            f"({sources.get('value_estimator', 'default')}): algorithm.adv_estimator={name} takes its "
            f"values from {ESTIMATOR_DEFAULTS[name]['value_estimator']}; leave the key out, or use adv_estimator=rredcot"
        )
    by_std = bool(config.algorithm.get("norm_adv_by_std_in_grpo", True))
    choices |= automatic(
        settings,
        by_std=by_std,
        why_not_in_pass=why_not_in_pass(config),
        tokens=most_response_tokens(config),
        cores=len(os.sched_getaffinity(0)),
    )
    settings = dataclasses.replace(settings, scale=choose_scale(settings, by_std=by_std).value)
    return Resolved(settings, sources, choices)


def most_response_tokens(config: Any) -> int:
    """Response tokens that a step can have at most."""
    return int(
        config.data.get("train_batch_size", 0)
        * config.actor_rollout_ref.rollout.n
        * config.data.get("max_response_length", 0)
    )


def _follow_verl(config: Any, settings: RRedCoTConfig) -> tuple[RRedCoTConfig, dict[str, Choice]]:
    """Options of segmenter and estimator that follow keys of verl's own, and why."""
    choices = {}
    path = config.reward.reward_model.model_path
    takes_model = settings.value_estimator == "reward_model" and not settings.value_kwargs.get("path")
    if takes_model and config.reward.reward_model.enable:
        settings = dataclasses.replace(settings, value_kwargs={**settings.value_kwargs, "path": path})
        choices["value_kwargs.path"] = Choice(
            path, "the model that verl rewards with, reward.reward_model.model_path, unless another is given"
        )
    length, given = OmegaConf.select(config, "data.max_response_length"), settings.segmenter_kwargs
    if length and "max_response_tokens" not in given and isinstance(settings.build_segmenter(), CutSegmenter):
        settings = dataclasses.replace(settings, segmenter_kwargs={**given, "max_response_tokens": int(length)})
        choices["segmenter_kwargs.max_response_tokens"] = Choice(
            int(length),
            "segments are spread over the longest response, data.max_response_length, unless told otherwise",
        )
    return settings, choices


def switch_on_critic(config: Any) -> dict[str, Choice]:
    """``rredcot_ppo`` trains a critic, as ``gae`` does in verl, without ``critic.enable`` being asked for; what was chosen.

    Raises:
        ValueError: ``critic.enable=False`` with an estimator that reads a critic.
    """
    if str(config.algorithm.adv_estimator) != PPO:
        return {}
    chosen = {}
    if config.critic.enable is None:
        config.critic.enable = True
        chosen["critic.enable"] = Choice(True, f"algorithm.adv_estimator={PPO} takes its values from a critic")
    if not config.critic.enable:
        raise ValueError(
            "critic.enable=False: algorithm.adv_estimator=rredcot_ppo takes its values from a critic; leave "
            "critic.enable out, or use adv_estimator=rredcot, which needs none"
        )
    return chosen


def check_estimator(config: Any, settings: RRedCoTConfig) -> None:
    """What the estimator and the baseline read must be there to be read in this run.

    Raises:
        ValueError: a name in ``reads`` that nobody writes; ``critic`` or ``reward_model`` without one; ``monte_carlo`` with a reward
            model that shares the trainer's devices, or with tools that cannot be played again; ``attention``,
            ``gradient`` or ``baseline: token`` with an engine whose log-prob pass we do not reach.
    """
    estimator = settings.build_value_estimator()
    reads = scores_read(estimator)
    key = f"algorithm.rredcot.value_estimator={settings.value_estimator}"
    if unknown := sorted(reads - TOKEN_SCORES):
        raise ValueError(
            f"{key} reads {unknown[0]!r}, which no part of a run with verl writes.{nearest(unknown[0], sorted(TOKEN_SCORES))} "
            f"Known: {', '.join(sorted(TOKEN_SCORES))}"
        )
    if "critic" in reads and not config.critic.enable:
        raise ValueError(
            f"critic.enable={config.critic.enable}: {key} reads a critic; set critic.enable=True, or use "
            f"algorithm.adv_estimator={PPO}, which does so itself"
        )
    if any(isinstance(part, RewardModelEstimator) and part.path is None for part in with_parts(estimator)):
        raise ValueError(
            f"{key} needs a reward model: set algorithm.rredcot.value_kwargs.path to its directory, or "
            "reward.reward_model.enable=True with its model_path"
        )
    reward_model = config.reward.reward_model
    if "monte_carlo" in reads and reward_model.enable and not reward_model.enable_resource_pool:
        raise ValueError(
            f"{key} scores continuations while the rollout server is up, which "
            "reward.reward_model.enable_resource_pool=False does not allow: give the reward model its own resource "
            "pool, or use an estimator without rollouts (support)"
        )
    if "monte_carlo" in reads and (why := why_not_replayed(config)) is not None:
        raise ValueError(
            f"{key} continues a trace with tools through actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent, "
            f"and {why}; use support, confidence, siblings or environment, or train without tools"
        )
    reason = why_not_in_pass(config)
    if reads & {"attention", "gradient"} and reason is not None:
        raise ValueError(
            f"{key} runs inside the log-prob pass of verl's FSDP engines, which {reason} keeps it out of: change "
            "that, or use an estimator that works with any engine (support, confidence)"
        )
    if "sum_pi_squared" in needs_of(settings.build_baseline(log_probs=True)) and reason is not None:
        raise ValueError(
            f"algorithm.rredcot.baseline={settings.baseline} reads the sum of squared probabilities from the logits of "
            f"the log-prob pass of verl's FSDP engines, which {reason} keeps it out of: change that, or use a baseline "
            "that works with any engine (least_variance, trace, value)"
        )


def why_not_replayed(config: Any) -> str | None:
    """What keeps tools of this run from being played again, continuation by continuation; None if nothing does."""
    rollout = config.actor_rollout_ref.rollout
    if path := rollout.agent.get("agent_loop_config_path"):
        return f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path} may put others in its place"
    if rollout.agent.default_agent_loop == TOOL_LOOP:
        return None
    if rollout.agent.default_agent_loop != ONE_TURN_LOOP:
        # which traces have values must not depend on what the model goes on to write
        return f"default_agent_loop={rollout.agent.default_agent_loop} is another loop, whose states cannot be brought back"
    for key in ("tool_config_path", "function_tool_path"):
        if path := rollout.multi_turn.get(key):
            found = f"default_agent_loop={rollout.agent.default_agent_loop}"
            return f"with {found} nothing says which rows play the tools of multi_turn.{key}={path}"
    return None


def why_not_in_pass(config: Any) -> str | None:
    """What keeps probes out of the log-prob pass of this run; None if nothing does."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if actor.strategy not in ("fsdp", "fsdp2"):
        return f"actor_rollout_ref.actor.strategy={actor.strategy}"
    for key in ("fsdp_config.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"):
        if (size := OmegaConf.select(actor, key) or 1) > 1:
            return f"actor_rollout_ref.actor.{key}={size}"
    if model.get("use_fused_kernels", False):
        return "actor_rollout_ref.model.use_fused_kernels=True"
    if bypasses(config):
        return "algorithm.rollout_correction.bypass_mode=True (there is no log-prob pass)"
    return None


def bypasses(config: Any) -> bool:
    """Whether ``old_log_probs`` are the rollout engine's, without a log-prob pass."""
    correction = config.algorithm.get("rollout_correction", None)
    return bool(correction and correction.get("bypass_mode", False))
