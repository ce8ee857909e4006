"""Penalties that are still to come, such as the KL in the reward, in what a baseline measures from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.credit.turn_rewards import expected_of_others
from rredcot_plugin.groups import group_stats

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from rredcot_plugin.baselines.base import Evidence


def with_penalties(evidence: Evidence, penalties: Float[Tensor, "B S"]) -> tuple[Evidence, Float[Tensor, "B S"]]:
    """The evidence for a baseline of the score alone, and what has to be added to it: the penalties that every state has
    still to expect, as other rollouts paid them (`expected_of_others`).

    The return from a state on (λ = 1) counts the penalties after it and none before. A baseline of the whole reward leaves
    an offset that depends on the position, on every token. ``penalties`` are those of each segment; without any nothing
    changes. Both are functions of the tokens before a state and of other rollouts, so the gradient stays what it is.
    """
    if not bool(penalties.any()):
        return evidence, torch.zeros_like(penalties)
    before, rollouts = evidence.outcomes, evidence.rollouts
    stats = group_stats(before.score, rollouts.group_ids, before.finite)
    to_come = expected_of_others(
        penalties, evidence.segments, rollouts.response_mask, stats.index, valid=before.finite
    )
    to_come = torch.where(before.finite[:, None], to_come, 0.0)
    paid, expected = segment_gae(penalties, evidence.segments.num_segments, 1.0), to_come
    if evidence.paid is not None and evidence.expected is not None:
        paid, expected = paid + evidence.paid, expected + evidence.expected
    outcomes = dataclasses.replace(before, total=before.score, stats=stats)
    return dataclasses.replace(evidence, outcomes=outcomes, paid=paid, expected=expected), to_come
