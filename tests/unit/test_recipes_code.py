"""The code reward: the last block counts, tests decide, hostile solutions earn nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from rredcot_plugin.sandbox import SandboxUnavailable, available
from tests.unit.recipe_scripts import RECIPES, code_preparation, load

PATH = RECIPES / "code" / "reward.py"
TRUTH = json.dumps(
    {
        "tests": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n",
        "entry_point": "sq",
    }
)
GOOD = "def sq(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def reward() -> ModuleType:
    module = load(PATH, "code_reward")
    if available().means is None and not os.environ.get("RREDCOT_REQUIRE_SANDBOX"):
        pytest.skip(f"{available()}")
    return module


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (f"<think>hm</think>\n```python\n{GOOD}```", 1.0),
        (f"```\n{GOOD}", 1.0),
        (f"```python\n{GOOD}```\nor rather\n```python\ndef sq(x):\n    return 2 * x\n```", 0.0),
        ("def sq(x): return x * x", 0.0),
        ("```python\nimport os\nos._exit(0)\n```", 0.0),
        ("```python\nwhile True: pass\n```", 0.0),
        ("", 0.0),
    ],
)
def test_score(reward: ModuleType, response: str, score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "LIMITS", reward.Limits(cpu_seconds=1, wall_seconds=60.0))
    found = reward.compute_score("code", response, TRUTH)
    assert found["score"] == found["acc"] == score
    assert isinstance(found["reason"], str)


def test_a_mistake_in_the_data_is_named(reward: ModuleType) -> None:
    for wrong in ("42", "not json", "{}"):
        with pytest.raises(ValueError, match="ground_truth: expected a JSON text"):
            reward.compute_score("code", "```\nx\n```", wrong)


def test_without_isolation_it_stops(reward: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise SandboxUnavailable("no bubblewrap")

    monkeypatch.setattr(reward, "run_tests", refuse)
    with pytest.raises(SandboxUnavailable):
        reward.compute_score("code", f"```\n{GOOD}```", TRUTH)


HUMAN_EVAL_SAMPLE = (0, 10, 32, 38, 68, 115, 163)
"""32, 38: the tests use a helper of the prompt; 115: an import and no docstring."""


@pytest.fixture(scope="module")
def human_eval() -> list[Any]:
    with code_preparation() as prepare_data:
        return list(prepare_data.read_problems("human-eval", prepare_data.Columns(), {}))


@pytest.mark.parametrize("number", HUMAN_EVAL_SAMPLE)
def test_solutions_of_human_eval_pass_and_empty_bodies_fail(
    reward: ModuleType, human_eval: list[Any], number: int
) -> None:
    problem = human_eval[number]
    (solution,) = problem.references
    empty = problem.question.partition("```python\n")[2].removesuffix("\n```") + "\n    pass\n"
    scores = [
        reward.compute_score("human_eval", f"So:\n```python\n{code}\n```\n", problem.ground_truth)["score"]
        for code in (solution, empty)
    ]
    assert scores == [1.0, 0.0]


def test_time_limits_grow_together() -> None:
    """A program that may compute longer may also take longer."""
    code = "import reward; print(reward.LIMITS.cpu_seconds, reward.LIMITS.wall_seconds)"
    env = {**os.environ, "RREDCOT_CODE_SECONDS": "20"}
    done = subprocess.run([sys.executable, "-c", code], cwd=PATH.parent, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["20", "40.0"]
