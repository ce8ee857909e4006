"""The code reward: the last block counts, tests decide, hostile solutions earn nothing."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from rredcot_plugin.sandbox import SandboxUnavailable, available

PATH = Path(__file__).parents[2] / "recipes" / "code" / "reward.py"
TRUTH = json.dumps(
    {
        "tests": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n",
        "entry_point": "sq",
    }
)
GOOD = "def sq(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def reward() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_reward", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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
