"""OpenRLHF's experiences as rollouts, and credit written back into them.

Column j of an experience's ``action_mask`` and log-probs is token j + 1 of its ``sequences``, the prompt included. A row's
prompt ends before its first action; what a tool or an environment said in between has mask 0 and belongs to the response.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.types import Rollouts

ANSWER_KEYS = ("answer", "ground_truth")
"""Where a label is an object, what of it the right answer is."""


@dataclass(frozen=True)
class Place:
    """Where a row stands: its experience, its number there, and the columns of its response."""

    experience: int
    row: int
    first: int
    end: int


def places_of(experiences: Sequence[Any]) -> list[Place]:
    """The rows of a step in the order of the experiences."""
    found = []
    for number, experience in enumerate(experiences):
        actions = experience.action_mask.bool()
        ends = experience.attention_mask.sum(1) - 1
        firsts = torch.where(actions.any(1), actions.long().argmax(1), ends)
        found += [
            Place(number, row, int(first), int(end))
            for row, (first, end) in enumerate(zip(firsts, ends, strict=True))
        ]
    return found


def response_numbers(tables: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """(rows, T) of the numbers per token of each experience, 0 in the padding."""
    return _padded([tables[at.experience][at.row, at.first : at.end].float() for at in places])


def read_rows(experiences: Sequence[Any], places: Sequence[Place], group_size: int) -> PromptedRollouts:
    """The rows with their prompts, without texts. The reward of a row stands on its last action; a row without one has none,
    and rewards that a reward model has yet to give are 0. ``log_probs`` are vLLM's, where it recorded them; one that is not finite
    counts as 0."""
    prompts, tokens, masks, groups, truths = [], [], [], [], []
    for at in places:
        own = experiences[at.experience]
        prompts.append(own.sequences[at.row, : at.first + 1])
        tokens.append(own.sequences[at.row, at.first + 1 : at.end + 1])
        masks.append(own.action_mask[at.row, at.first : at.end].bool())
        groups.append(str(own.index[at.row] // group_size))
        truths.append(right_answer(own.labels[at.row] if own.labels else None))
    mask = _padded(masks)
    rewards = read_rewards(experiences, places, mask)
    recorded = [own.rollout_log_probs for own in experiences]
    log_probs = None
    if all(own is not None for own in recorded):
        log_probs = torch.where(mask, response_numbers(recorded, places).nan_to_num(0.0, 0.0, 0.0), 0.0)
    rollouts = Rollouts(_padded(tokens), mask, rewards, groups, log_probs=log_probs, ground_truths=truths)
    return PromptedRollouts(rollouts, prompts, [""] * len(prompts), [len(own) for own in tokens])


def read_rewards(experiences: Sequence[Any], places: Sequence[Place], mask: torch.Tensor) -> torch.Tensor:
    """(rows, T): the reward of each row on its last action, by ``mask``; 0 where there is none yet."""
    known = [own.rewards is not None for own in experiences]
    rewards = [float(experiences[at.experience].rewards[at.row]) if known[at.experience] else 0.0 for at in places]
    return _at_last_action(torch.tensor(rewards), mask)


def right_answer(label: Any) -> str | None:
    """The data set's answer in a label: the label itself, or what a mapping or a JSON object has under ``ANSWER_KEYS``.

    >>> right_answer("42"), right_answer('{"answer": 42}'), right_answer({"ground_truth": "42"}), right_answer(None)
    ('42', '42', '42', None)
    """
    if label is None:
        return None
    try:
        found = label if isinstance(label, Mapping) else json.loads(label)
    except (TypeError, ValueError, RecursionError):
        return str(label)
    if not isinstance(found, Mapping):
        return str(label)
    return next((str(found[key]) for key in ANSWER_KEYS if found.get(key) is not None), None)


def write_tokens(experiences: Sequence[Any], places: Sequence[Place], field: str, table: torch.Tensor) -> None:
    """Give every experience its rows of ``table`` (rows, T) under ``field``; 0 outside responses."""
    for experience in experiences:
        setattr(experience, field, torch.zeros_like(experience.action_log_probs, dtype=torch.float32))
    for number, at in enumerate(places):
        getattr(experiences[at.experience], field)[at.row, at.first : at.end] = table[number, : at.end - at.first]


def _at_last_action(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(1, mask.shape[1] + 1)
    last = (mask * numbers).amax(dim=1)
    return torch.where(mask & (numbers == last[:, None]), rewards[:, None], 0.0)


def _padded(rows: list[torch.Tensor]) -> torch.Tensor:
    """(rows, T) with at least one column."""
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return table if table.shape[1] else torch.nn.functional.pad(table, (0, 1))
