"""Read and check the options before Ray starts, and again where they are used."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from rredcot_plugin.choices import choose_scale
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.installed import installed_version
from rredcot_plugin.integrations.advice import without_log_probs
from rredcot_plugin.integrations.openrlhf import OPTIONS, SUPPORTED_OPENRLHF
from rredcot_plugin.integrations.openrlhf.arguments import ESTIMATOR, PPO, PREFIX, RED
from rredcot_plugin.integrations.openrlhf_cpu import PACKED
from rredcot_plugin.options import ESTIMATOR_DEFAULTS, V1_ONLY
from rredcot_plugin.presets import resolve_keys
from rredcot_plugin.segmenters import CutSegmenter
from rredcot_plugin.values.base import proposal_limits, scores_read

CLIP = (-10, 10)
"""``--reward.clip_range`` of OpenRLHF where it is not given."""

BACKENDS = ("auto", "cached", "packed", "batched")

READS = {PPO: "critic", RED: "reward_model"}
"""What an estimator's name promises to read."""


def is_ours() -> bool:
    """Whether this process belongs to a run that asked for us."""
    return OPTIONS in os.environ


def for_processes(estimator: str, options: Mapping[str, Any]) -> str:
    """What goes into the environment of every process of a run."""
    return json.dumps({"estimator": estimator, "options": dict(options)})


def settings_of_process(args: Any) -> RRedCoTConfig:
    """The options of the run that this process belongs to, with what follows OpenRLHF's ``args``."""
    given = json.loads(os.environ[OPTIONS])
    return follow(read_settings(given["estimator"], given["options"]), args)


def read_settings(estimator: str, options: Mapping[str, Any]) -> RRedCoTConfig:
    """``algo.rredcot`` as ``RRedCoTConfig``; the estimator's own defaults yield to a preset, and both to ``options``.

    Raises:
        ValueError: an option that is not allowed, or that OpenRLHF's pass cannot serve; OpenRLHF missing, or another version of it.
    """
    installed = installed_version("openrlhf")
    if installed is None:
        raise ValueError(f"openrlhf is not installed in this environment: it needs openrlhf=={SUPPORTED_OPENRLHF}")
    if installed != SUPPORTED_OPENRLHF:
        raise ValueError(
            f"openrlhf {installed} is not supported by this version of rredcot: it needs openrlhf=={SUPPORTED_OPENRLHF}"
        )
    try:
        keys, sources = resolve_keys(options, ESTIMATOR_DEFAULTS[estimator], f"{ESTIMATOR} {estimator}")
        settings = RRedCoTConfig.from_keys(keys, sources)
        check(estimator, options, settings)
    except ValueError as error:
        raise ValueError(str(error).replace("algorithm.rredcot.", PREFIX)) from error
    return settings


def check(estimator: str, options: Mapping[str, Any], settings: RRedCoTConfig) -> None:
    """What the value estimator reads must be there to be read, and every key have a meaning in OpenRLHF.

    Raises:
        ValueError: it is not, with what to take instead.
    """
    reads, own = scores_read(settings.build_value_estimator()), READS.get(estimator)
    key = f"{PREFIX}value_estimator {settings.value_estimator}"
    if own is not None and own not in reads:
        raise ValueError(f"{key}: {ESTIMATOR} {estimator} takes its values from {own}; leave the key out")
    if missing := reads - {own}:
        raise ValueError(
            f"{key}: reads {', '.join(sorted(missing))}, which {ESTIMATOR} {estimator} does not provide; use support or "
            f"confidence, or {ESTIMATOR} {PPO} for a critic's values and {RED} for a reward model's"
        )
    for name in V1_ONLY:
        if name in options:
            raise ValueError(
                f"{PREFIX}{name}: belongs to verl's trainer and has no meaning in OpenRLHF; leave it out"
            )
    if settings.probe_backend not in BACKENDS:
        raise ValueError(
            f"{PREFIX}probe_backend {settings.probe_backend}: in OpenRLHF there are {', '.join(BACKENDS)}"
        )


def follow(settings: RRedCoTConfig, args: Any) -> RRedCoTConfig:
    """The options with what follows flags of OpenRLHF's own: the scale, and the longest response."""
    given, (_, length) = settings.segmenter_kwargs, longest_response(args)
    if "max_response_tokens" not in given and isinstance(settings.build_segmenter(), CutSegmenter):
        settings = dataclasses.replace(settings, segmenter_kwargs={**given, "max_response_tokens": int(length)})
    scale = choose_scale(settings, by_std=not args.algo.advantage.no_std_norm).value
    return dataclasses.replace(settings, scale=scale)


def longest_response(args: Any) -> tuple[str, int]:
    """The flag that says how long a response gets at most, and its value in tokens.

    OpenRLHF's agents do not read ``--rollout.max_new_tokens``: all their turns together fill ``--data.max_len``.
    """
    if args.rollout.max_new_tokens and not args.train.agent_func_path:
        return "--rollout.max_new_tokens", args.rollout.max_new_tokens
    return "--data.max_len", args.data.max_len


def check_flags(settings: RRedCoTConfig, args: Any) -> None:
    """What does not go together with flags of OpenRLHF's own, as its parser has read them.

    Raises:
        ValueError: the flag, its value, and what to do.
    """
    if tuple(args.reward.clip_range) != CLIP:
        raise ValueError(
            f"--reward.clip_range {' '.join(map(str, args.reward.clip_range))}: clips what OpenRLHF's estimators make of rewards, which "
            "credit by segment does not read; leave it out"
        )
    without_recorded(settings, args)
    _check_packing(args)
    _check_images(settings, args)
    if proposal_limits(settings.build_value_estimator()):
        _check_probes(args)
    if "reward_model" in scores_read(settings.build_value_estimator()):
        _check_reward_model(args)


def without_recorded(settings: RRedCoTConfig, args: Any) -> str:
    """What is left of the segmenter without log-probs of vLLM, which OpenRLHF asks for only with importance sampling.

    Raises:
        ValueError: nothing is.
    """
    flag = "--algo.advantage.is_correction_level"
    if args.algo.advantage.is_correction_level != "off":
        return ""
    return without_log_probs(settings, f"{PREFIX}segmenter ", f"{flag} off", f"{flag} token")


def _check_packing(args: Any) -> None:
    """OpenRLHF packs rows with flash-attn; without it the first pass would fail, after minutes."""
    asked = {
        "--ds.packing_samples": args.ds.packing_samples,
        "--train.dynamic_batch_enable": args.train.dynamic_batch_enable,
        f"--ds.ring_attn_size {args.ds.ring_attn_size}": args.ds.ring_attn_size > 1,
    }
    flag = next((flag for flag, wanted in asked.items() if wanted), None)
    if flag is None or args.ds.attn_implementation == PACKED:
        return
    if installed_version("flash-attn") is None:
        raise ValueError(
            f"{flag}: packs rows with flash-attn, which is not installed; install it, or leave the flag out"
        )


def _check_images(settings: RRedCoTConfig, args: Any) -> None:
    """Rows of probes, and the pass of ``packed``, are made of tokens alone."""
    flag = f"--data.max_images_per_prompt {args.data.max_images_per_prompt}"
    if args.data.max_images_per_prompt < 1:
        return
    if proposal_limits(settings.build_value_estimator()):
        raise ValueError(
            f"{flag}: probes of {PREFIX}value_estimator {settings.value_estimator} do not see images; use "
            f"{PREFIX}value_estimator confidence, which has no probes"
        )
    if settings.probe_backend == "packed":
        raise ValueError(
            f"{flag}: {PREFIX}probe_backend packed runs the log-prob pass without images; leave it out"
        )


def _check_probes(args: Any) -> None:
    """Probes ask for rewarded answers."""
    way_out = f"use {PREFIX}value_estimator confidence, which has no probes"
    if not args.reward.remote_url and not args.train.agent_func_path:
        raise ValueError(
            "--reward.remote_url: is not given, and a reward model's rewards come after the log-prob pass, too late for probes of "
            f"rewarded answers; {way_out}, or give a reward function"
        )


def _check_reward_model(args: Any) -> None:
    name = args.reward.model_name_or_path
    if not name or args.reward.remote_url or args.train.agent_func_path:
        raise ValueError(
            f"--reward.model_name_or_path {name}: {ESTIMATOR} {RED} reads the head of the reward model that rewards; give its path, "
            "and neither --reward.remote_url nor --train.agent_func_path"
        )
    if max(args.ds.ring_attn_size, args.ds.tensor_parallel_size) > 1:
        raise ValueError(
            f"--ds.ring_attn_size {args.ds.ring_attn_size}, --ds.tensor_parallel_size {args.ds.tensor_parallel_size}: {ESTIMATOR} "
            f"{RED} reads the reward model's head on whole rows; use 1 for both"
        )
