"""recipes/agent as its processes see it: the tools are imported by name from its folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.unit.recipe_scripts import RECIPES

AGENT = RECIPES / "agent"
MODULES = ("arithmetic", "calculator", "python_tool", "word_problems", "tool_dialogue", "warm_up")


@pytest.fixture(scope="module")
def agent() -> Iterator[Any]:
    """A function from the name of a module of the recipe to the module."""
    sys.path.insert(0, str(AGENT))

    def module(name: str) -> ModuleType:
        assert name in MODULES
        return importlib.import_module(name)

    yield module
    sys.path.remove(str(AGENT))
    for name in MODULES:
        sys.modules.pop(name, None)
