"""Sessions whose tool answers lie within one row, and the same sessions cut there into a row for each turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from tests.contract.memory import Entry, MemoryQueue, enqueue, fields_of, key_of, make_trainer, step
from tests.unit.test_group_work import bare_rows

TURN = {"segmenter": "turn", "bridge": "'#### '", "baseline": "value"}
"""The bridge is named: that of ``auto`` drops its line end at the beginning of a response."""

TOOLS = {1: [(2, 4)], 5: [(1, 3), (5, 6)], 6: [(3, 4)], 12: [(2, 5)]}
"""Row -> the columns where tools answer."""


def tool_rows() -> PromptedRollouts:
    """Rows of which some have tool answers."""
    rows = bare_rows()
    mask = torch.arange(rows.token_ids.shape[1]) < torch.tensor(rows.lengths)[:, None]
    for row, gaps in TOOLS.items():
        assert rows.lengths[row] > gaps[-1][1] + 1, "the last turn has tokens"
        for first, end in gaps:
            mask[row, first:end] = False
    return dataclasses.replace(rows, rollouts=dataclasses.replace(rows.rollouts, response_mask=mask))


def turns_of(rows: PromptedRollouts, row: int) -> Iterator[slice]:
    """Columns of each turn."""
    begin = 0
    for first, end in TOOLS.get(row, []):
        yield slice(begin, first)
        begin = end
    yield slice(begin, rows.lengths[row])


def whole_entries(rows: PromptedRollouts) -> list[Entry]:
    """Every row as a session of its own."""
    return [(key_of(rows, row), fields_of(rows, row), {}) for row in range(len(rows.lengths))]


def cut_entries(rows: PromptedRollouts) -> list[Entry]:
    """A row for every turn: its prompt is everything before it, its reward that of the session, as verl copies it."""
    entries: list[Entry] = []
    for row in range(len(rows.lengths)):
        whole, session = fields_of(rows, row), key_of(rows, row)[:-2]
        for number, turn in enumerate(turns_of(rows, row)):
            entries.append((f"{session}_{number}", turn_fields(whole, turn), {}))
    return entries


def turn_fields(whole: dict[str, Any], turn: slice) -> dict[str, Any]:
    """The fields of a row that holds one turn of ``whole``."""
    own = {name: whole[name][turn] for name in ("responses", "response_mask", "rollout_log_probs")}
    rewards = torch.zeros(len(own["responses"]))
    rewards[-1:] = whole["rm_scores"].sum()
    prompt = torch.cat([whole["prompts"], whole["responses"][: turn.start]])
    input_ids = torch.cat([prompt, own["responses"]])
    return {**whole, **own, "prompts": prompt, "rm_scores": rewards, "input_ids": input_ids}


def assert_same_turns(
    rows: PromptedRollouts, whole: dict[str, torch.Tensor], cut: dict[str, torch.Tensor], atol: float = 1e-5
) -> None:
    """Every turn has the same numbers in both."""
    for row in range(len(rows.lengths)):
        key = key_of(rows, row)
        for number, turn in enumerate(turns_of(rows, row)):
            assert torch.allclose(cut[f"{key[:-2]}_{number}"], whole[key][turn], atol=atol), (key, number)


def stepped(
    patch: pytest.MonkeyPatch, entries: Any, options: dict[str, Any], *overrides: str, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Advantages by key, and metrics, of a step on these rows in a queue of their own."""
    queue, metrics = MemoryQueue(patch), {}
    trainer = make_trainer(queue, {**TURN, **options}, *overrides)
    found = step(trainer, enqueue(queue, entries, seed), metrics)
    return found, metrics
