"""``turn_rewards``: what is paid on the way stays on its own segment, and counts for no later one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.redistribution import redistribute, sum_per_segment
from rredcot_plugin.groups import Outcomes
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class TurnRewards:
    """``paid`` are the rewards on the way of each segment, w; ``expected`` is Ŵ, what the state before it has still to
    expect of them (`expected_of_others`), 0 in rows without a finite reward."""

    paid: Float[Tensor, "B S"]
    expected: Float[Tensor, "B S"]

    @classmethod
    def taken_from(
        cls, rollouts: Rollouts, segments: Segments, earned: Outcomes
    ) -> tuple[Rollouts, TurnRewards | None]:
        """The rollouts without their rewards on the way, and these; None where there are none."""
        rest, on_the_way = separate(rollouts)
        if on_the_way is None:
            return rollouts, None
        paid = sum_per_segment(on_the_way, segments)
        expected = expected_of_others(
            paid, segments, rollouts.response_mask, earned.stats.index, valid=earned.finite
        )
        return rest, cls(paid, torch.where(earned.finite[:, None], expected, 0.0))


def terms(
    way: TurnRewards | None,
    values: Float[Tensor, "B S"],
    num_segments: Int[Tensor, " B"],
    *,
    whole: bool,
    of_values: bool,
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """What rewards on the way add to δ, to the values and to the baselines: w_i + Ŵ_{i+1} − Ŵ_i, Ŵ_i and Ŵ_i.

    ``whole`` says that values are of all that is still to come already: then they get nothing and δ gets w_i, and
    neither do baselines that are the values (``of_values``).
    """
    none = torch.zeros_like(values)
    if way is None:
        return none, none, none
    in_values = none if whole else way.expected
    paid = way.paid + redistribute(in_values, none[:, 0], num_segments)
    return paid, in_values, in_values if of_values else way.expected


def separate(rollouts: Rollouts) -> tuple[Rollouts, Float[Tensor, "B T"] | None]:
    """The rollouts without their rewards on the way, and these per token; None where there are none.

    On the way is what stands on an unmasked token before the last one and is no penalty. A row whose rewards are not
    finite keeps them: it earns nothing.

    >>> rewards, mask = torch.tensor([[0.5, 9.0, 1.0]]), torch.tensor([[True, False, True]])
    >>> rest, on_the_way = separate(Rollouts(None, mask, rewards, [0]))
    >>> rest.rewards.tolist(), on_the_way.tolist()
    ([[0.0, 9.0, 1.0]], [[0.5, 0.0, 0.0]])
    """
    mask, rewards = rollouts.response_mask, rollouts.rewards.float()
    if rollouts.penalties is not None:
        rewards = rewards - rollouts.penalties.float()
    before_last = mask & (mask.cumsum(1) < mask.sum(1, keepdim=True))
    before_last &= torch.isfinite(rollouts.outcomes)[:, None]
    on_the_way = torch.where(before_last, rewards, 0.0)
    if not bool(on_the_way.any()):
        return rollouts, None
    return dataclasses.replace(rollouts, rewards=rollouts.rewards.float() - on_the_way), on_the_way


def expected_of_others(
    paid: Float[Tensor, "B S"],
    segments: Segments,
    response_mask: Bool[Tensor, "B T"],
    group: Int[Tensor, " B"],
    *,
    valid: Bool[Tensor, " B"],
) -> Float[Tensor, "B S"]:
    """Ŵ of every state: the mean, over the *other* rollouts of the group that get as far, of what they were paid from the
    same place on, and over one more that was paid nothing: few siblings are a rough guide. 0 in the padding.

    The place of a state is the number of turns (stretches of unmasked tokens) before the segment that begins there, and
    of segments before it in its turn. A sibling gets as far if it has as many turns. Where its turn has fewer segments,
    the last one of them stands for the place, so that what is paid at the end of a turn is expected throughout the turn.
    Places are functions of the tokens before a state, so Ŵ is one of these and of other rollouts; no number of turns
    has to be the same. Rows not ``valid`` are nobody's sibling.
    """
    B, S = paid.shape
    place, turns = _places(segments, response_mask)
    to_go = paid.flip(1).cumsum(1).flip(1)
    order = group.argsort(stable=True)
    sizes = group.bincount()[group]
    first = torch.zeros(B + 1, dtype=torch.int64, device=paid.device)
    first[1:] = group.bincount(minlength=B).cumsum(0)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(B, device=paid.device)) - first[group]
    total, count = torch.zeros_like(to_go), torch.zeros_like(to_go)
    for distance in range(1, int(sizes.max()) if B else 1):
        other = order[first[group] + (rank + distance) % sizes]
        same = torch.searchsorted(place[other], place.clamp(max=NEVER - 1), right=True) - 1
        far = (turns[other, None] * S > place - place % S) & (valid[other] & (distance < sizes))[:, None]
        total += torch.where(far, to_go[other].gather(1, same.clamp(min=0)), 0.0)
        count += far
    return torch.where(segments.exists, total / (count + 1), 0.0)


def _places(
    segments: Segments, response_mask: Bool[Tensor, "B T"]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, " B"]]:
    """turn·S + number within the turn of each segment, ascending and ``NEVER`` in the padding; turns of each trace."""
    B, S = segments.exists.shape
    begins = response_mask.clone()
    begins[:, 1:] &= ~response_mask[:, :-1]
    turn = begins.cumsum(1).gather(1, segments.starts.clamp(max=response_mask.shape[1] - 1)) - 1
    number = torch.arange(S, device=turn.device).expand(B, S)
    opens = torch.ones_like(turn, dtype=torch.bool)
    opens[:, 1:] = turn[:, 1:] != turn[:, :-1]
    within = number - torch.where(opens, number, 0).cummax(1).values
    return torch.where(segments.exists, turn * S + within, NEVER), begins.sum(1)
