"""The math reward pays an answer that states several values only where the ground truth states them too."""

from __future__ import annotations

import pytest

from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import load

reward = load(MATH / "reward.py", "math_reward_of_values")


def score(answer: str, truth: str) -> float:
    return reward.compute_score("any", f"So $\\boxed{{{answer}}}$", truth)["score"]


@pytest.mark.parametrize(
    "answer",
    [
        "x=4 \\lor x=5",
        "x=4 \\vee x=5",
        "x=4 \\quad x=5",
        "x=4\\cup x=5",
        "x=4 / x=5",
        "x=4 x=5",
        "x = 4 \\\\ x = 5",
        "x_1=\\frac{8}{2} \\mbox{ or } x_1=5",
        "a=4 \\land b=5",
        "a=4 and b=5",
        "4 \\approx 5",
        "x = 4 \\approx 5",
    ],
)
@pytest.mark.parametrize("truth", ["4", "5"])
def test_several_values_are_none_of_them(answer: str, truth: str) -> None:
    assert score(answer, truth) == 0.0


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("4, 5", "x=4 \\lor x=5"),
        ("x=5 \\text{ or } x=4", "x=4 \\quad x=5"),
        ("(4, 5)", "x=4 \\land y=5"),
        ("x=4 \\vee x=5", "4, 5"),
    ],
)
def test_the_values_of_the_ground_truth_score(truth: str, answer: str) -> None:
    assert score(answer, truth) == 1.0


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("12", "y = 3 x = 12"),
        ("3", "y=x/2=3"),
        ("5", "x = 2x - x = 5"),
        ("5", "x = \\sqrt x \\sqrt x = 5"),
        ("3", "C = A \\cup B = 3"),
        ("3", "1 + 2 = 3 = \\frac{6}{2}"),
        ("5", "m = 5 cm = 5"),
        ("\\sqrt{2}", "x = \\sqrt 2 \\approx 1.41"),
        ("4.6", "4.6 \\approx 5"),
        ("2.67", "2.67 \\approx 2.6"),
    ],
)
def test_chains_and_rounded_values_are_one_value(truth: str, answer: str) -> None:
    assert score(answer, truth) == 1.0
