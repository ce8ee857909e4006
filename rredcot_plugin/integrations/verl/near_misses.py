"""Keys and names that look like ours and are read by nobody: a run would train with the defaults and never say so."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from rredcot_plugin.integrations.verl.estimator import NAMES
from rredcot_plugin.integrations.verl.settings import is_ours
from rredcot_plugin.presets import known_keys

HOME = "algorithm.rredcot"
ALIKE = 0.75
"""Least similarity (difflib's ratio) of a key to ``rredcot`` that makes it a near miss. verl's own keys are below 0.6."""


def check_keys(config: Any) -> None:
    """Options of ours must stand where they are read. Does nothing where the estimator is not ours.

    Raises:
        ValueError: a key that resembles ``rredcot`` anywhere but at ``algorithm.rredcot``, or an option of ours directly
            under ``algorithm``, with the key that was meant.
    """
    if not is_ours(config):
        return
    for path, keys in _look_alikes(config):
        example = f": {HOME}.{keys[0]}" if keys else f", or as a Hydra group +rredcot@{HOME}=default"
        raise ValueError(f"{path}: nothing reads this key. rredcot's options belong under {HOME}{example}")
    for key in known_keys():
        if key in config.algorithm and key not in _verls_own():
            raise ValueError(f"algorithm.{key}: nothing reads this key. Did you mean {HOME}.{key}?")


def check_estimator_name(config: Any) -> None:
    """An unknown ``algorithm.adv_estimator`` that resembles one of ours is a mistake that verl would find only when it
    computes the first advantages.

    Raises:
        ValueError: it is registered with nobody and resembles a name of ours.
    """
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    name = str(config.algorithm.adv_estimator)
    near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.8)
    if near and name not in ADV_ESTIMATOR_REGISTRY and name not in NAMES:
        raise ValueError(
            f"algorithm.adv_estimator={name}: unknown. Did you mean {near[0]}? Ours are {', '.join(NAMES)}"
        )


def _look_alikes(node: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Path of each near miss, and the keys below it."""
    for key in node:
        path = f"{prefix}{key}"
        child = node._get_node(key)
        is_mapping = isinstance(child, DictConfig) and not child._is_none() and not child._is_missing()
        if path == HOME:
            continue
        if difflib.SequenceMatcher(None, str(key).lower(), "rredcot").ratio() >= ALIKE:
            yield path, [str(own) for own in child] if is_mapping else []
        elif is_mapping:
            yield from _look_alikes(child, f"{path}.")


def _verls_own() -> set[str]:
    from verl.trainer.config import AlgoConfig

    return set(AlgoConfig.__dataclass_fields__)
