"""Old names of configuration keys and metrics. They are accepted for now; the first use of each warns with the new one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

KEYS = {"log_every": "histogram_every"}
"""Old key of ``algorithm.rredcot`` -> new one. Values keep their meaning."""

METRICS = {
    "rredcot/plan/processes/mean": "rredcot/driver/workers/mean",
}
"""Old metric -> new one, for readers of curves that an earlier version has logged."""

_warned: set[str] = set()


def with_new_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping under today's keys.

    >>> with_new_keys({"log_every": 5, "lam": 1.0})
    {'histogram_every': 5, 'lam': 1.0}

    Raises:
        ValueError: a key is given under its old and its new name.
    """
    found = dict(mapping)
    for old, new in KEYS.items():
        if old not in found:
            continue
        if new in found:
            raise ValueError(
                f"algorithm.rredcot: {old} is the old name of {new}, and both are given; leave {old} out"
            )
        _warn_once(f"algorithm.rredcot.{old}", f"algorithm.rredcot.{new}")
        found = {new if key == old else key: value for key, value in found.items()}
    return found


def new_metric(name: str) -> str:
    """Today's name of a metric.

    >>> new_metric("critic/score/mean")
    'critic/score/mean'
    """
    if name not in METRICS:
        return name
    _warn_once(name, METRICS[name])
    return METRICS[name]


def _warn_once(old: str, new: str) -> None:
    if old not in _warned:
        _warned.add(old)
        logger.warning("rredcot: %s is now called %s; the old name will not be accepted forever", old, new)
