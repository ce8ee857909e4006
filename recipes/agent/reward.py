r"""0/1 reward for agents: the final answer of the last turn must equal the ground truth, in ../math/reward.py's sense.

    reward.custom_reward_function.path=recipes/agent/reward.py
    reward.custom_reward_function.name=compute_score

verl hands over the whole response: what the model wrote and what the tools told it, as one text. Only the last turn of the
model counts, and no call in it: an answer that a tool printed is not the model's.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

TURN = "\nassistant\n"
"""What a ChatML template leaves in front of a turn once its special tokens are gone."""
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


def _load_math() -> ModuleType:
    """The mathematical reward, from ../math or from math/ beside this file."""
    here = Path(__file__).resolve().parent
    paths = (here.parent / "math/reward.py", here / "math/reward.py")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ImportError(f"{paths[1]}: not found; put the files of recipes/math into math/ beside reward.py")
    spec = importlib.util.spec_from_file_location("rredcot_agent_math_reward", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_math = _load_math()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """`score`, `acc`, `format` and `pred` of the last turn as ../math/reward.py has them, and `calls`: calls written.

    Raises:
        ValueError: a ground truth that is not text (a mistake in the data).
    """
    found: dict[str, Any] = _math.compute_score(data_source, last_turn(solution_str), ground_truth)
    return {**found, "calls": float(len(_CALL.findall(solution_str)))}


def last_turn(text: str) -> str:
    r"""What the model wrote after the last reply of a tool, without calls.

    >>> last_turn("<tool_call>{}</tool_call>\ntool\n#### 7\nassistant\n#### 8")
    '#### 8'
    """
    return _CALL.sub("", text.rpartition(TURN)[2])
