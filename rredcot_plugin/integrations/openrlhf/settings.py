"""Read and check the options before Ray starts, and again where they are used."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rredcot_plugin.choices import choose_scale
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.openrlhf import OPTIONS, SUPPORTED_OPENRLHF
from rredcot_plugin.integrations.openrlhf.arguments import PREFIX
from rredcot_plugin.presets import resolve_keys
from rredcot_plugin.segmenters import CutSegmenter
from rredcot_plugin.values.base import proposal_limits, scores_read

CLIP = (-10, 10)
"""``--reward.clip_range`` of OpenRLHF where it is not given."""

BACKENDS = ("auto", "cached", "batched")


def is_ours() -> bool:
    """Whether this process belongs to a run that asked for us."""
    return OPTIONS in os.environ


def settings_of_process(args: Any) -> RRedCoTConfig:
    """The options of the run that this process belongs to, with what follows OpenRLHF's ``args``."""
    return follow(read_settings(json.loads(os.environ[OPTIONS])), args)


def read_settings(options: Mapping[str, Any]) -> RRedCoTConfig:
    """``algo.rredcot`` as ``RRedCoTConfig``.

    Raises:
        ValueError: an option that is not allowed, or that OpenRLHF's pass cannot serve; OpenRLHF missing, or another version of it.
    """
    try:
        installed = version("openrlhf")
    except PackageNotFoundError:
        raise ValueError(
            f"openrlhf is not installed in this environment: it needs openrlhf=={SUPPORTED_OPENRLHF}"
        ) from None
    if installed != SUPPORTED_OPENRLHF:
        raise ValueError(
            f"openrlhf {installed} is not supported by this version of rredcot: it needs openrlhf=={SUPPORTED_OPENRLHF}"
        )
    try:
        settings = RRedCoTConfig.from_keys(*resolve_keys(options))
        check(settings)
    except ValueError as error:
        raise ValueError(str(error).replace("algorithm.rredcot.", PREFIX)) from error
    return settings


def check(settings: RRedCoTConfig) -> None:
    """What the estimator reads must be there to be read, and the backend be one of OpenRLHF's.

    Raises:
        ValueError: it is not, with what to take instead.
    """
    reads = scores_read(settings.build_value_estimator())
    if reads:
        raise ValueError(
            f"{PREFIX}value_estimator {settings.value_estimator}: reads {', '.join(sorted(reads))}, which OpenRLHF's log-prob "
            "pass does not give; take support or confidence"
        )
    if settings.probe_backend not in BACKENDS:
        raise ValueError(
            f"{PREFIX}probe_backend {settings.probe_backend}: in OpenRLHF there are {', '.join(BACKENDS)}"
        )


def follow(settings: RRedCoTConfig, args: Any) -> RRedCoTConfig:
    """The options with what follows keys of OpenRLHF's own: the scale, and the longest response.

    Raises:
        ValueError: keys of OpenRLHF that credit by segment does not go with.
    """
    if tuple(args.reward.clip_range) != CLIP:
        raise ValueError(
            f"--reward.clip_range {' '.join(map(str, args.reward.clip_range))}: clips normalised rewards, which credit by "
            "segment has none of; leave it out"
        )
    parallel = max(args.ds.ring_attn_size, args.ds.tensor_parallel_size)
    if parallel > 1 and proposal_limits(settings.build_value_estimator()):
        raise ValueError(
            f"--ds.ring_attn_size {args.ds.ring_attn_size}, --ds.tensor_parallel_size {args.ds.tensor_parallel_size}: rows are "
            f"cut there, so probes cannot run; take {PREFIX}value_estimator confidence, or 1 for both"
        )
    given, length = settings.segmenter_kwargs, args.rollout.max_new_tokens
    if length and "max_response_tokens" not in given and isinstance(settings.build_segmenter(), CutSegmenter):
        settings = dataclasses.replace(settings, segmenter_kwargs={**given, "max_response_tokens": int(length)})
    scale = choose_scale(settings, by_std=not args.algo.advantage.no_std_norm).value
    return dataclasses.replace(settings, scale=scale)
