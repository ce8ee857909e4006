"""Rollouts without credit as traces: lines of verl's `trainer.rollout_data_dir`, and what `rredcot score` takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from rredcot_plugin.offline.input_columns import (
    NAMES,
    NEEDED,
    VERL_KEY,
    is_from_verl,
    names_of,
    read_reward,
    read_step,
    response_text,
)
from rredcot_plugin.report.traces import ScoredSegment, Trace

SHOWN_KEYS = 20


def read_rollout(record: Mapping[str, Any]) -> Trace:
    """A trace of one segment, the whole response, with unknown credit.

    In verl's columns ``uid`` is the key of a row, "{prompt}_{session}_{output}"; its front is the group. Elsewhere it is
    the group as it stands. Without a uid, equal prompts of a step are one group.

    Raises:
        ValueError: a column is missing (naming those that are there), or has a value of the wrong kind.
    """
    used = {column: next((name for name in NAMES[column] if name in record), "") for column in NAMES}
    missing = [names_of(column) for column in NEEDED if not used[column]]
    if missing:
        raise ValueError(f"missing columns: {', '.join(missing)}; found: {found_keys(record)}")
    prompt = _prompt(record[used["prompt"]])
    truth = record.get(used["ground_truth"])
    from_verl = is_from_verl(used["prompt"], used["response"])
    return Trace(
        step=read_step(record.get("step")),
        uid=_group(record.get(used["group"]), prompt, from_verl),
        prompt=prompt,
        ground_truth=None if truth is None else str(truth),
        reward=_reward(record[used["reward"]]),
        segments=(ScoredSegment(response_text(record[used["response"]]), 0, math.nan, math.nan, math.nan),),
        has_segments=False,
    )


def _reward(value: Any) -> float:
    """As `rredcot score` reads it; NaN where it is null or not finite."""
    number = math.nan if value is None else read_reward(value)
    return number if math.isfinite(number) else math.nan


def found_keys(record: Mapping[str, Any]) -> str:
    """The keys of a line for a message, the first few of them."""
    named = [f"{key!r:.40}" for key in list(record)[:SHOWN_KEYS]]
    return ", ".join([*named, "…"] if len(record) > SHOWN_KEYS else named) or "none"


def _group(uid: Any, prompt: str, from_verl: bool) -> str:
    if uid is None:
        return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    key = VERL_KEY.fullmatch(str(uid)) if from_verl else None
    return key[1] if key else str(uid)


def _prompt(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(message, Mapping) for message in value):
        return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in value)
    raise ValueError(f"prompt: expected a text or a list of messages, got {value!r:.80}")
