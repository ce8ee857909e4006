"""Everything that is checked before a run, in one place for whoever starts it: verl's main program, the trainer,
`rredcot dry-run` and `rredcot explain`."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import OmegaConf

from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.integrations.verl.advice import check_log_probs, warn_of_pointless
from rredcot_plugin.integrations.verl.near_misses import check_estimator_name, check_keys
from rredcot_plugin.integrations.verl.settings import (
    Resolved,
    bypasses,
    check_estimator,
    is_ours,
    resolve_settings,
    switch_on_critic,
    why_not_in_pass,
)
from rredcot_plugin.options import V1_ONLY
from rredcot_plugin.values.base import proposal_limits, scores_read

SECTIONS = (
    "data",
    "algorithm",
    "critic",
    "trainer",
    "trainer.v1",
    "reward",
    "reward.reward_model",
    "actor_rollout_ref",
    "actor_rollout_ref.model",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.rollout.agent",
    "actor_rollout_ref.rollout.multi_turn",
)
"""Sections of verl's that verl and ours read without asking whether they are there."""

COUNTS = {
    "actor_rollout_ref.rollout.n": 1,
    "data.train_batch_size": 0,  # of asynchronous runs, which have none
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
}
"""Integers of verl's, and the least that each may be."""

REPLAYING = ("megatron", "veomni")
"""Strategies with verl's router replay; their engines run no probes in the log-prob pass."""


def check_run(config: Any) -> Resolved | None:
    """The options of a run; None where the estimator is not ours. ``critic.enable`` is set where ours needs a critic.

    Raises:
        ValueError: whatever is wrong, naming key, value and way out.
    """
    check_estimator_name(config)
    if not is_ours(config):
        return None
    check_keys(config)
    check_sections(config)
    check_counts(config)
    check_trainer(config)
    resolved = resolve_settings(config)
    if not config.trainer.use_v1:
        check_legacy(config, resolved)
    chosen = switch_on_critic(config)
    check_estimator(config, resolved.config)
    check_router_replay(config, resolved)
    check_log_probs(config, resolved.config)
    return dataclasses.replace(resolved, choices=resolved.choices | chosen)


def check_sections(config: Any) -> None:
    """Sections of keys must not be replaced by something else, such as ``trainer.v1=null``.

    Raises:
        ValueError: one that is missing, or no mapping.
    """
    for key in SECTIONS:
        value = OmegaConf.select(config, key)
        if not OmegaConf.is_dict(value):
            raise ValueError(
                f"{key}={'null' if value is None else value}: expected a section of keys, as verl's configuration has it; "
                "leave the override out"
            )


def check_counts(config: Any) -> None:
    """Numbers of verl's that ours follows; verl itself finds a text among them only when it computes with it.

    Raises:
        ValueError: one that is not a whole number, or too small.
    """
    for key, least in COUNTS.items():
        value = OmegaConf.select(config, key, default=least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{key}={value!r}: expected an integer from {least}")


def check_trainer(config: Any) -> None:
    """verl's experimental trainers that generate elsewhere: their configurations have a ``rollout`` of their own.

    Raises:
        ValueError: it is one of them, whose steps leave no place for credit.
    """
    own = OmegaConf.select(config, "rollout.nnodes")
    if own is not None and not config.actor_rollout_ref.hybrid_engine:
        raise ValueError(
            f"actor_rollout_ref.hybrid_engine=False with rollout.nnodes={own}: verl's experimental trainers "
            "one_step_off_policy and fully_async_policy are not supported with "
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}; run verl.trainer.main_ppo with "
            "trainer.v1.trainer_mode=separate_async or colocate_async, or use an estimator of verl's own (grpo)"
        )


def check_legacy(config: Any, resolved: Resolved) -> None:
    """What the trainer over ``DataProto`` cannot do.

    Raises:
        ValueError: an option that needs ``trainer.use_v1=true``, or what is missing for one.
    """
    settings = resolved.config
    for name in V1_ONLY:
        if name in resolved.sources and (value := getattr(settings, name)) != 0:
            raise ValueError(
                f"algorithm.rredcot.{name}={value}: has no effect with trainer.use_v1=false; leave it out, or set "
                "trainer.use_v1=true"
            )
    reads = scores_read(settings.build_value_estimator())
    if unread := reads - {"critic"}:
        raise ValueError(
            f"algorithm.rredcot.value_estimator={settings.value_estimator}: reads {', '.join(sorted(unread))}, which needs "
            "trainer.use_v1=true; set that, or use support or confidence"
        )
    if "sum_pi_squared" in needs_of(settings.build_baseline(log_probs=True)):
        raise ValueError(
            f"algorithm.rredcot.baseline={settings.baseline}: needs trainer.use_v1=true; set that, or use least_variance"
        )
    if bypasses(config):
        raise ValueError(
            "algorithm.rollout_correction.bypass_mode=True: with trainer.use_v1=false, verl then runs no log-prob pass, where "
            "credit begins; set bypass_mode=False, or trainer.use_v1=true"
        )
    reason = why_not_in_pass(config)
    if proposal_limits(settings.build_value_estimator()) and (reason or settings.probe_backend == "batched"):
        raise ValueError(
            f"trainer.use_v1=false runs probes in the log-prob pass alone, which {reason or 'probe_backend=batched'} keeps them "
            "out of; change that, set trainer.use_v1=true, or use value_estimator=confidence"
        )
    if "critic" in reads and not config.critic.enable:
        raise ValueError(
            f"critic.enable={config.critic.enable}: with trainer.use_v1=false set critic.enable=True for the critic that "
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} reads"
        )


def check_router_replay(config: Any, resolved: Resolved) -> None:
    """Probes as rows of their own, with experts that verl replays.

    Raises:
        ValueError: ``router_replay.mode=R3``, which wants the experts that the rollout server has recorded for every row.
    """
    strategy = config.actor_rollout_ref.actor.strategy
    key = f"actor_rollout_ref.actor.{strategy}.router_replay.mode"
    if strategy not in REPLAYING or OmegaConf.select(config, key) != "R3":
        return
    choice = resolved.choices.get("probe_backend")
    backend = resolved.config.probe_backend if choice is None else choice.value
    if backend == "batched":
        raise ValueError(
            f"{key}=R3 replays the experts that the rollout server has recorded, and probes, which run as rows of their "
            f"own with actor_rollout_ref.actor.strategy={strategy}, have none recorded: set {key}=R2 or "
            f"{key}=disabled, or +algorithm.rredcot.value_estimator=confidence, which needs no probes"
        )


def begin_run(config: Any) -> Resolved | None:
    """``check_run``, with the warnings that belong into the log of a run; errors alike."""
    resolved = check_run(config)
    if resolved is not None:
        warn_of_pointless(config, resolved.config)
    return resolved
