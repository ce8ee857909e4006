"""What was told of parts of OpenRLHF's responses, put on the tokens that earned it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rredcot_plugin.adapter.process_rewards import moves, moves_to
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.openrlhf.rows import Place
from rredcot_plugin.text.alignment import TokenBytes

TOLD = "rredcot_process_rewards"
"""What a reward function said under ``process_rewards``."""

TURNS = "rredcot_turn_rewards"
"""Pairs (end, reward) of an agent's turns, where a turn ends before token ``end`` of prompt and responses."""

KEPT = (TOLD, TURNS)
"""Among the ``extra_logs`` of a response; then in an experience's ``info``, a list of one entry for each row."""


def take_told(samples: Sequence[Any], places: Sequence[Place]) -> dict[str, list[Any]]:
    """Take what was told out of the experiences, whose ``info`` OpenRLHF logs; None for rows whose reward is yet to come from a
    reward model, since it is of another reward."""
    said = {name: [sample.info.pop(name, None) for sample in samples] for name in KEPT}
    known = [sample.rewards is not None for sample in samples]
    return {
        name: [
            own[at.experience][at.row] if known[at.experience] and own[at.experience] else None for at in places
        ]
        for name, own in said.items()
    }


def shown_by(table: TokenBytes) -> TokenBytes:
    """How a response reads to OpenRLHF's reward functions: decoded after its prompt, special tokens and all."""
    return dataclasses.replace(table.going_on(), special=())


def moves_told(
    rows: PromptedRollouts, places: Sequence[Place], told: dict[str, list[Any]], shown: TokenBytes
) -> tuple[torch.Tensor | None, int]:
    """What is to be added to the rewards of the rows, (rows, T), None for nothing; and what of all that was said could not be
    read.

    As `process_rewards.moves`, but for characters, which are those of ``shown_by``.
    """
    by_character = moves(dataclasses.replace(rows, told=told[TOLD]), shown)
    by_turn = moves_to(rows, told[TURNS], lambda row, ends: _columns(rows, row, ends, places[row].first))
    found = [added for added, _ in (by_character, by_turn) if added is not None]
    return (torch.stack(found).sum(0) if found else None), by_character[1] + by_turn[1]


def _columns(rows: PromptedRollouts, row: int, ends: Sequence[int], first: int) -> torch.Tensor:
    """The last token of the model before each of these ends, which count prompt and responses; ``first`` is the column of
    an experience's masks that the response begins in, whose token is the next one."""
    written = rows.rollouts.response_mask[row].nonzero().flatten()
    if not len(written):
        return torch.zeros(0, dtype=torch.int64)
    columns = np.array(ends) - (first + 1)
    return written[(np.searchsorted(written.numpy(), columns, side="left") - 1).clip(min=0)]
