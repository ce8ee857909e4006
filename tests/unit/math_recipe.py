"""Shared by the tests of the math recipe."""

from __future__ import annotations

from tests.unit.recipe_scripts import (
    RECIPES,
)

MATH = RECIPES / "math"
