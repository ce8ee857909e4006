"""The demo's reward, and an eighth for every line whose sum is right: told line by line."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import rredcot_plugin

LINE = re.compile(r"([0-9]+) ([+-]) ([0-9]+) = (-?[0-9]+)")
EARNS = 0.125


def right_lines(text: str) -> list[int]:
    """The ends of the lines that are right."""
    return [found.end() for found in LINE.finditer(text) if is_right(*found.groups())]


def is_right(left: str, sign: str, right: str, result: str) -> bool:
    return int(left) + int(sign + right) == int(result)


def demo_reward() -> ModuleType:
    """verl loads a reward function by the path of its file, and so does this."""
    path = Path(rredcot_plugin.__file__).parent / "demo/reward.py"
    spec = importlib.util.spec_from_file_location("rredcot_demo_reward", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compute_score(data_source: str, solution_str: str, ground_truth: str, **kwargs: Any) -> dict[str, Any]:
    found = demo_reward().compute_score(data_source, solution_str, ground_truth)
    told = [[end, EARNS] for end in right_lines(solution_str)]
    return {"score": found["score"] + EARNS * len(told), "acc": found["acc"], "process_rewards": json.dumps(told)}
