r"""0/1 reward for code: the response's last code block must pass the problem's tests, in a sandbox.

    reward.custom_reward_function.path=recipes/code/reward.py
    reward.custom_reward_function.name=compute_score

``ground_truth`` is a JSON text ``{"tests": ..., "entry_point": ...}``: asserts that call the solution's functions, or a
``check(candidate)`` as in HumanEval with ``entry_point`` naming the function. Tests run in a process of their own, the
solution in another: no network, no files but its own, limits on time, memory and output (docs/guides/sandbox.md).

A machine that cannot isolate a program stops the run at the first score. ``RREDCOT_SANDBOX=weak`` together with
``RREDCOT_TRUST_CODE=1`` goes on without namespaces: a program that attacks its checker may then earn a reward it does not
deserve.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from rredcot_plugin.sandbox import Limits, run_tests

SECONDS = int(os.environ.get("RREDCOT_CODE_SECONDS", "5"))
LIMITS = Limits(cpu_seconds=SECONDS, wall_seconds=2.0 * SECONDS)
MAX_CODE_CHARS = 50_000
"""Longer text is not a solution."""
_OPENS = re.compile(
    r"(?P<indent>\s*+(?:[-*+]\s++|[0-9]++[.)]\s++)?)"
    r"(?:(?=```)|(?:(?!```).)*+(?=```+[a-zA-Z0-9_+-]*+\s*+$))(?P<ticks>```+)[^`]*$"
)
"""At the start of a line (or of a list's item) with any words after it, within a line with the language at most.

Possessive: a line of spaces would take time with the square of its length."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """``{"score", "acc", "format", "reason"}``: score 1.0 if every test passes, format 1.0 if there is a code block.

    Raises:
        ValueError: a ground truth that is not of the form above (a mistake in the data).
        SandboxUnavailable: no strong isolation on this machine, and no ``RREDCOT_SANDBOX=weak``; or weak
            isolation without ``RREDCOT_TRUST_CODE=1``.
        SandboxFailed: the sandbox did not start; nothing is known about the solution.
    """
    tests, entry_point = _tests_of(ground_truth)
    code = extract_code(solution_str)
    if code is None:
        return {"score": 0.0, "acc": 0.0, "format": 0.0, "reason": "no code block"}
    isolation = os.environ.get("RREDCOT_SANDBOX", "strong")
    trusted = os.environ.get("RREDCOT_TRUST_CODE", "0") == "1"
    found = run_tests(code, tests, entry_point, limits=LIMITS, isolation=isolation, trust_code=trusted)
    score = float(found.passed)
    return {"score": score, "acc": score, "format": 1.0, "reason": found.reason[:200]}


def extract_code(text: str) -> str | None:
    r"""The last fenced block after ``</think>``; None: there is none, it is too long, or the model still thinks.

    >>> extract_code("First:\n```python\nx = 1\n```\nthen\n```\ny = 2\n```\n")
    'y = 2\n'
    """
    _, end, tail = text.rpartition("</think>")
    if not end and "<think>" in text:
        return None
    blocks = _blocks(tail)
    return blocks[-1] if blocks and len(blocks[-1].strip()) <= MAX_CODE_CHARS else None


def _blocks(text: str) -> list[str]:
    r"""The fenced blocks that hold something, without common indentation; the last one need not be closed.

    Only a line that begins with backticks closes a block, indented by no more than its opening and three spaces:
    those further in are a docstring's. One that names a language opens the next.

    >>> _blocks("- So:\r\n  ```python {.numbered}\r\n  x = '```'\r\n  ```\r\n")
    ["x = '```'\n"]
    """
    blocks: list[list[str]] = []
    ticks, deepest = "", 0
    for line in text.replace("\r\n", "\n").split("\n"):
        start = line.lstrip()
        closes = bool(ticks) and start.startswith(ticks) and len(line) - len(start) <= deepest
        if ticks and not closes:
            blocks[-1].append(line)
        elif closes and not start[len(ticks) :][:1].isalpha():
            ticks = ""
        elif "```" in line and (opens := _OPENS.match(line)):
            ticks, deepest = opens["ticks"], len(opens["indent"]) + 3
            blocks.append([])
    codes = ["\n".join(lines).rstrip("\n") + "\n" for lines in blocks]
    return [_dedented(code) for code in codes if code.strip()]


def _dedented(code: str) -> str:
    """Only code that begins indented: dedenting also empties blank lines, those of a text in quotes too."""
    return textwrap.dedent(code) if code.lstrip("\n")[:1].isspace() else code


def _tests_of(ground_truth: str) -> tuple[str, str | None]:
    try:
        given = json.loads(ground_truth)
        return str(given["tests"]), given.get("entry_point")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f'ground_truth: expected a JSON text {{"tests": ..., "entry_point": ...}}, got {str(ground_truth)[:80]!r}'
        ) from error
