"""Steps of a runner."""

from __future__ import annotations

from typing import Any

import pytest

import rredcot_plugin as rr
from tests.contract.memory import (
    MemoryQueue,
)

NEWLINE = {"segmenter": "newline"}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> MemoryQueue:
    return MemoryQueue(monkeypatch)


def config(**options: Any) -> rr.RRedCoTConfig:
    return rr.RRedCoTConfig(**{"segmenter": "newline", "scale": "group_std", **options})
