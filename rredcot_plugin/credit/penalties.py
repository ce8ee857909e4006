"""Penalties that are still to come, such as the KL in the reward, in what a baseline measures from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.credit.redistribution import redistribute
from rredcot_plugin.credit.turn_rewards import expected_of_others
from rredcot_plugin.groups import Outcomes, group_stats

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from rredcot_plugin.baselines.base import Evidence


def without_penalties(outcomes: Outcomes, group_ids: Sequence[Hashable]) -> Outcomes:
    """The same of the score alone, with its groups' statistics.

    What advantages are divided by is taken from it: in a group of equal scores the deviation of the whole reward is that of the
    penalties, and divided by it, a penalty of a thousandth counts as much as a reward.
    """
    stats = group_stats(outcomes.score, group_ids, outcomes.finite)
    return dataclasses.replace(outcomes, total=outcomes.score, stats=stats)


def with_penalties(evidence: Evidence, penalties: Float[Tensor, "B S"]) -> tuple[Evidence, Float[Tensor, "B S"]]:
    """The evidence for a baseline of the score alone, and what has to be added to it: the penalties that every state has
    still to expect, as other rollouts paid them (`expected_of_others`).

    The return from a state on counts the penalties after it and none before. A baseline of the whole reward leaves
    an offset that depends on the position, on every token. ``penalties`` are those of each segment; without any nothing
    changes. Both are functions of the tokens before a state and of other rollouts, so the gradient stays what it is.
    """
    if not bool(penalties.any()):
        return evidence, torch.zeros_like(penalties)
    before, rollouts = evidence.outcomes, evidence.rollouts
    outcomes = without_penalties(before, rollouts.group_ids)
    to_come = expected_of_others(
        penalties, evidence.segments, rollouts.response_mask, before.stats.index, valid=before.finite
    )
    to_come = torch.where(before.finite[:, None], to_come, 0.0)
    paid, expected = segment_gae(penalties, evidence.segments.num_segments, 1.0), to_come
    if evidence.paid is not None and evidence.expected is not None:
        paid, expected = paid + evidence.paid, expected + evidence.expected
    return dataclasses.replace(evidence, outcomes=outcomes, paid=paid, expected=expected), to_come


def owed_by(
    penalties: Float[Tensor, "B S"], to_come: Float[Tensor, "B S"], num_segments: Int[Tensor, " B"]
) -> Float[Tensor, "B S"]:
    """What penalties add to the δ of an advantage that is measured from those expected: p_i + P̂_{i+1} − P̂_i.

    At λ = 1 the sum from a state on is what it pays minus P̂, at any λ one of differences from what was expected. It is added
    to scaled advantages as it is: penalties have a coefficient of their own, as in OpenRLHF.
    """
    return penalties + redistribute(to_come, torch.zeros_like(to_come[:, 0]), num_segments)
