"""Sums over transfers."""

from __future__ import annotations

from typing import Any

from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.transfers import transfers


def total(setup: Setup, **match: Any) -> float:
    return sum(t.bytes for t in transfers(setup) if all(getattr(t, key) == value for key, value in match.items()))
