"""The columns of a rollout, in the names of verl's `trainer.rollout_data_dir` and in plain ones."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rredcot_plugin.adapter.process_rewards import FIELD as PROCESS_REWARDS
from rredcot_plugin.adapter.process_rewards import parse
from rredcot_plugin.offline.json_lines import BadLine, read_lines
from rredcot_plugin.report.traces import LARGEST

NAMES = {
    "prompt": ("prompt", "input"),
    "response": ("response", "output", "completion"),
    "reward": ("reward", "score", "rewards"),
    "group": ("uid", "group"),
    "ground_truth": ("ground_truth", "gts"),
    "references": ("references",),
    "process_rewards": (PROCESS_REWARDS,),
    "step": ("step",),
}
"""Column -> the names it may have; the first one that a line has counts."""

NEEDED = ("prompt", "response", "reward")
VERL_KEY = re.compile(r"(.+)_(\d+)_(\d+)")
"""What verl writes as ``uid``: uid, session and output of the session."""


@dataclass(frozen=True)
class Row:
    """One rollout. ``prompt`` is text or chat messages; ``session`` and ``output`` are verl's, else None and 0.

    ``from_verl``: the prompt was decoded without its special tokens.
    """

    line: int
    prompt: str | list[Mapping[str, Any]]
    response: str
    reward: float
    group: str
    step: int = 0
    ground_truth: Any = None
    references: Any = None
    process_rewards: Any = None
    from_verl: bool = False
    session: str | None = None
    output: int = 0


def read_rows(path: Path, reference_column: str = "references") -> tuple[list[Row], list[BadLine]]:
    """All rollouts of a file, and the lines that had to be left out; errors as in ``read_lines``."""
    names = {**NAMES, "references": (reference_column,)}
    return read_lines(path, lambda number, record: _row(number, record, names))


def read_step(value: Any) -> int:
    """An integer from 0; ValueError if it is none. Nothing is step 0."""
    step = value or 0
    if isinstance(step, float) and step.is_integer():  # a column of integers with gaps, as pandas writes it
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < LARGEST:
        raise ValueError(f"step: expected an integer from 0, got {step!r:.80}")  # as every reader of the output
    return step


def names_of(column: str) -> str:
    """The names that a column may have, for a message."""
    return " or ".join(map(repr, NAMES[column]))


def is_from_verl(prompt: str | None, response: str | None) -> bool:
    """Whether these names of the two columns are those that verl's trainer writes."""
    return prompt == "input" and response == "output"


def _row(line: int, record: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Row:
    used = {column: next((name for name in options if name in record), None) for column, options in names.items()}
    missing = [" or ".join(map(repr, names[column])) for column in NEEDED if used[column] is None]
    if missing:
        raise ValueError(f"missing columns: {', '.join(missing)}; found: {', '.join(map(repr, record)) or 'none'}")

    def get(column: str) -> Any:
        name = used[column]
        return None if name is None else record[name]

    from_verl = is_from_verl(used["prompt"], used["response"])
    prompt = _prompt(get("prompt"))
    group, session, output = _group(get("group"), prompt, from_verl)
    return Row(
        line=line,
        prompt=prompt,
        response=response_text(get("response")),
        reward=read_reward(get("reward")),
        group=group,
        step=read_step(get("step")),
        ground_truth=get("ground_truth"),
        references=get("references"),
        process_rewards=_process_rewards(get("process_rewards")),
        from_verl=from_verl,
        session=session,
        output=output,
    )


def _group(uid: Any, prompt: Any, from_verl: bool) -> tuple[str, str | None, int]:
    """Group, session and output of the session; equal prompts are one group where no uid says otherwise."""
    if uid is None:
        return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16], None, 0
    key = VERL_KEY.fullmatch(str(uid)) if from_verl else None
    return (key[1], f"{key[1]}_{key[2]}", int(key[3])) if key else (str(uid), None, 0)


def _prompt(value: Any) -> str | list[Mapping[str, Any]]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_message(m) for m in value):
        return value
    raise ValueError(f"prompt: expected a text or a list of messages with 'role' and 'content', got {value!r:.80}")


def _is_message(value: Any) -> bool:
    """A role and what was said; parts of a message other than text are the template's affair."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str | list)
    )


def response_text(value: Any) -> str:
    """A text, or TRL's conversational form of it: a list of one message with a text as ``content``."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0].get("content")
    if not isinstance(value, str):
        raise ValueError(f"response: expected a text, got {value!r:.80}")
    return value


def read_reward(value: Any) -> float:
    """A number; one that no report would read back counts as infinite, for nobody."""
    if isinstance(value, str | int | float):
        with suppress(ValueError, OverflowError):
            number = float(value)
            return math.copysign(math.inf, number) if abs(number) >= LARGEST else number
    raise ValueError(f"reward: expected a number, got {value!r:.80}")


def _process_rewards(value: Any) -> Any:
    _, readable = parse(value)
    if not readable:
        raise ValueError(
            f"process_rewards: expected pairs of a character and a number, or these as JSON, got {value!r:.80}"
        )
    return value


def last_outputs(rows: Sequence[Row]) -> list[Row]:
    """One row a session, its last output; rows of no session all stay.

    Earlier ones have a copy of the last one's reward. Training joins all of them to one trace; this does not.
    """
    last: dict[tuple[int, str], int] = {}
    for row in rows:
        if row.session is not None:
            key = (row.step, row.session)
            last[key] = max(last.get(key, 0), row.output)
    return [row for row in rows if row.session is None or last[row.step, row.session] == row.output]


def group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one step and group together, in order of first appearance."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.step, row.group), []).append(row)
    return list(groups.values())
