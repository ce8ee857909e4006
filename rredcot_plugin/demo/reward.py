"""Rule-based 0/1 reward for the demo tasks, in the form verl's `reward.custom_reward_function` asks for.

    reward.custom_reward_function.path=.../rredcot_plugin/demo/reward.py
    reward.custom_reward_function.name=compute_score

The model's answer is what stands after the last `####`. It must have the right *value*, in whatever notation
(`+1,019.0` is `1019`, `[13, '19']` is `13 19`), and nothing else: no partial credit. reasoning-gym's own scorers
are not called here because they pay for hedging: `chain_sum` gives part of the point when the right number
occurs anywhere in the answer, `number_sorting` accepts numbers that are off by one. Everything here is linear
in the length of the answer and free of signals, threads and evaluation, so verl may call it from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

ANSWER_MARKER = "####"
MAX_ANSWER_CHARS = 256  # longer text after the marker is not an answer
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


def extract_answer(text: str) -> str | None:
    """The first line after the last `####`, stripped; None if there is no marker, no text, or too much.

    >>> extract_answer("12 + 7 = 19\\n#### 19\\n")
    '19'
    >>> extract_answer("so it must be 19") is None
    True
    """
    _, marker, tail = text.rpartition(ANSWER_MARKER)
    lines = tail.strip().splitlines()
    if not marker or not lines or len(lines[0]) > MAX_ANSWER_CHARS:
        return None
    return lines[0].strip() or None


def parse_number(text: str) -> Decimal | None:
    """The value of a plain decimal number (sign, leading zeros and thousands commas allowed), else None."""
    plain = text.strip().replace("\N{MINUS SIGN}", "-")
    if _THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    return Decimal(plain) if _NUMBER.fullmatch(plain) else None


def parse_numbers(text: str) -> list[Decimal] | None:
    """The values of a list parted by spaces or commas, bare or in brackets, quoted or not; else None."""
    inner = text.strip()
    if inner and _BRACKETS.get(inner[0]) == inner[-1]:
        inner = inner[1:-1]
    numbers = [parse_number(part.strip("'\"")) for part in _SEPARATOR.split(inner.strip())]
    values = [number for number in numbers if number is not None]
    return values if len(values) == len(numbers) else None


PARSERS: dict[str, Callable[[str], Decimal | list[Decimal] | None]] = {
    "chain_sum": parse_number,
    "number_sorting": parse_numbers,
}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Score one response: `{"score": 1.0, "acc": 1.0}` if its answer equals `ground_truth`, else zeros.

    Args:
        data_source: `rredcot_demo/<task>`; the part after the last slash selects the parser.
        solution_str: the decoded response; nothing in it can make this function raise.
        ground_truth: the right answer in the notation of `tasks.py`.
        extra_info: verl passes the row's extra_info here; not needed.
        kwargs: `reward_kwargs` of the config and handles of verl's reward loop; not needed.

    Raises:
        ValueError: a data source or a ground truth that is not of a demo task (a mistake in the data).
    """
    task = data_source.rpartition("/")[2]
    if task not in PARSERS:
        raise ValueError(f"data_source: got {data_source!r}, expected the name of a task: {sorted(PARSERS)}")
    parse = PARSERS[task]
    expected = parse(ground_truth)
    if expected is None:
        raise ValueError(f"ground_truth: got {ground_truth!r}, not an answer of task {task!r}")
    answer = extract_answer(solution_str)
    score = float(answer is not None and parse(answer) == expected)
    return {"score": score, "acc": score}
