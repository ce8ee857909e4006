"""Rewards on the lines that earned them: the same reward of a response, told to the trainer line by line."""

from __future__ import annotations

import dataclasses

import torch
from lab.family import Family
from lab.rollouts import LabBatch

from rredcot_plugin.types import Segments


def on_lines(family: Family, batch: LabBatch, segments: Segments) -> LabBatch:
    """The batch with each line's reward on its last token, and on the response's last token what is left of the whole.

    ``segments`` are lines, the last one the answer's. The sum of a response stays what it was.
    """
    rollouts = batch.rows.rollouts
    rewards, ends = torch.zeros_like(rollouts.rewards), (segments.starts + segments.lengths - 1).tolist()
    counts, totals = segments.num_segments.tolist(), rollouts.outcomes.tolist()
    for row, question in enumerate(batch.questions):
        earned = family.line_rewards(question, rollouts.texts[row])[: max(counts[row] - 1, 0)]
        for end, reward in zip(ends[row], earned, strict=False):
            rewards[row, end] = reward
        if counts[row]:
            rewards[row, ends[row][counts[row] - 1]] = totals[row] - sum(earned)
    placed = dataclasses.replace(rollouts, rewards=rewards)
    return dataclasses.replace(batch, rows=dataclasses.replace(batch.rows, rollouts=placed))
