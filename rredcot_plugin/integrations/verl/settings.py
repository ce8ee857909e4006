"""Read and check the options before anything is built, and decide where the probes can run."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import verl
from omegaconf import OmegaConf

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl import SUPPORTED_VERL
from rredcot_plugin.integrations.verl.estimator import NAMES

logger = logging.getLogger(__name__)


def is_ours(config: Any) -> bool:
    return str(config.algorithm.adv_estimator) in NAMES


def read_settings(config: Any) -> RRedCoTConfig:
    """``algorithm.rredcot`` of a verl config as ``RRedCoTConfig``.

    ``scale`` follows ``algorithm.norm_adv_by_std_in_grpo`` where it is not given.

    Raises:
        ValueError: an option that is not allowed, or a verl version that is not supported.
    """
    if not verl.__version__.startswith(SUPPORTED_VERL):
        raise ValueError(
            f"verl {verl.__version__} is not supported by this version of rredcot: it needs verl=={SUPPORTED_VERL}"
        )
    given = config.algorithm.get("rredcot", None)
    mapping: Any = OmegaConf.to_container(given, resolve=True) if given is not None else {}
    settings = RRedCoTConfig.from_mapping(mapping)
    if settings.scale is None:
        by_std = config.algorithm.get("norm_adv_by_std_in_grpo", True)
        settings = dataclasses.replace(settings, scale="group_std" if by_std else "none")
    return settings


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
    if rollout.calculate_log_probs:
        return
    segmenter, signals = settings.build_segmenter(), {"surprise", "log_probs"}
    if signals & set(getattr(segmenter, "needs", ())):
        raise ValueError(
            f"algorithm.rredcot.segmenter={settings.segmenter} reads log-probs of the rollout engine: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or take a segmenter that reads texts only"
        )
    if signals & set(getattr(segmenter, "uses", ())):
        logger.warning(
            "rredcot: segmenter=%s looks at the surprise of the sampled tokens, which "
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
    correction = config.algorithm.get("rollout_correction", None)
    if correction and correction.get("bypass_mode", False):
        return "algorithm.rollout_correction.bypass_mode=True (there is no log-prob pass)"
    return None
