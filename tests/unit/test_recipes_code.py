"""The code reward: the last block counts, tests decide, hostile solutions earn nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
        (f"<think>hm\n```python\n{GOOD}```", 0.0),
        (f"what the prompt's <think> began</think>\n```python\n{GOOD}```", 1.0),
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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('```py\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```\n', 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n'),
        ("```python\r\nx = 1\r\n\r\ny = 2\r\n```\r\n", "x = 1\n\ny = 2\n"),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
        ("10. ```python\n    x\n    ```\nand so on", "x\n"),
        ("```python {.numbered}\nx\n```\nThat is it.", "x\n"),
        ("```python\nx = '```'\n```", "x = '```'\n"),
        ("````md\n```\nx\n```\n````", "```\nx\n```\n"),
        ("```python\nx\n```python\ny\n```\n```", "y\n"),
        ("So: ```python\nx\n```</answer> Use ```f()``` or ``` as you like\n", "x\n"),
        ('```\nx = """\n \n"""\n```', 'x = """\n \n"""\n'),
        ("```x = 1```\n", None),
        ("```\n\n```", None),
        ("```\n" + "x" * 50_001, None),
    ],
)  # fmt: skip
def test_the_last_block_is_found(reward: ModuleType, text: str, code: str | None) -> None:
    assert reward.extract_code(text) == code


@pytest.mark.parametrize("text", ["```", "```\n", "``` a", " ```a\n", "- ", "1", "`", " "])
def test_hostile_text_is_read_quickly(reward: ModuleType, text: str) -> None:
    started = time.process_time()
    reward.extract_code(text * 50_000)
    reward.extract_code(" " + text * 50_000 + "```x`")
    reward.extract_code("- " + text * 50_000 + "x ```!")
    assert time.process_time() - started < 2.0


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


def test_weak_isolation_pays_only_for_trusted_code(reward: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RREDCOT_SANDBOX", "weak")
    monkeypatch.delenv("RREDCOT_TRUST_CODE", raising=False)
    with pytest.raises(SandboxUnavailable, match="RREDCOT_TRUST_CODE=1"):
        reward.compute_score("code", f"```\n{GOOD}```", TRUTH)
    monkeypatch.setenv("RREDCOT_TRUST_CODE", "1")
    assert reward.compute_score("code", f"```\n{GOOD}```", TRUTH)["score"] == 1.0


MBPP_SUMS = {
    "text": "Write a python function to find the sum of common divisors of two given numbers.",
    "code": "def sum(a, b):\r\n    total = 0\r\n    for i in range(1, min(a, b) + 1):\r\n"
    "        if a % i == 0 and b % i == 0:\r\n            total += i\r\n    return total",
    "test_list": ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93", "assert len(str(sum(4, 6))) == 1"],
}
"""The form of MBPP's rows; here the tests also call built-in functions."""


def test_a_function_of_mbpp_with_the_name_of_a_built_in_earns_its_reward(reward: ModuleType) -> None:
    with code_preparation() as prepare_data:
        module = sys.modules["problems"]
        problem = module.to_problem(MBPP_SUMS, prepare_data.Columns(), "row 1")
    assert problem.entry_point == "sum"
    for code, score in ((MBPP_SUMS["code"], 1.0), ("def sum(a, b):\n    return a + b\n", 0.0)):
        assert reward.compute_score("mbpp", f"```python\n{code}\n```", problem.ground_truth)["score"] == score
    plain = json.dumps({"tests": "\n".join(MBPP_SUMS["test_list"][:2]), "entry_point": None})
    assert reward.compute_score("mbpp", f"```python\n{MBPP_SUMS['code']}\n```", plain)["score"] == 1.0


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
