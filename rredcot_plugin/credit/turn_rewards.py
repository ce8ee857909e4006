"""``turn_rewards``: what is paid on the way stays on its own segment, and counts for no later one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.advantages import segment_gae
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

    def returns(self, num_segments: Int[Tensor, " B"], lam: float) -> Float[Tensor, "B S"]:
        """What is paid from each state on; at ``lam`` below 1 what is expected stands more and more for what was paid."""
        changes = self.paid + redistribute(self.expected, torch.zeros_like(self.paid[:, 0]), num_segments)
        return segment_gae(changes, num_segments, lam) + self.expected


def known_to_baselines(
    way: TurnRewards | None, num_segments: Int[Tensor, " B"], lam: float
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]] | tuple[None, None]:
    """What a baseline is to know of rewards on the way: their returns, and what is expected of them."""
    return (None, None) if way is None else (way.returns(num_segments, lam), way.expected)


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

    On the way is what stands on an unmasked token before the last one and is not a penalty. A row whose rewards are not
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
    same place on, and over one more that was paid the mean of all other groups: few siblings are a rough guide, and
    a rollout without any has that mean alone. Nothing where no other group gets as far. 0 in the padding.

    The place of a state is the number of turns (stretches of unmasked tokens) before the segment that begins there, and
    of segments before it in its turn. A rollout gets as far if it has as many turns. Where its turn has fewer segments,
    the last one of them stands for the place, so that what is paid at the end of a turn is expected throughout the turn.
    Places are functions of the tokens before a state, so Ŵ is one of these and of other rollouts, and not of how sure
    the actor was; no number of turns has to be the same. Rows not ``valid`` count for nobody.
    """
    place, turns = _places(segments, response_mask)
    to_go = paid.double().flip(1).cumsum(1).flip(1)
    everywhere, everyone = _sums_at(place, turns, to_go, torch.zeros_like(group), valid)
    of_group, members = _sums_at(place, turns, to_go, group, valid)
    own = valid[:, None].long()
    siblings = members - own
    total = torch.where(siblings > 0, of_group - to_go * own, 0.0)
    elsewhere = torch.where(everyone > members, everywhere - of_group, 0.0) / (everyone - members).clamp(min=1)
    return torch.where(segments.exists, (total + elsewhere) / (siblings + 1), 0.0).to(paid.dtype)


def _sums_at(
    place: Int[Tensor, "B S"],
    turns: Int[Tensor, " B"],
    to_go: Float[Tensor, "B S"],
    group: Int[Tensor, " B"],
    valid: Bool[Tensor, " B"],
) -> tuple[Float[Tensor, "B S"], Int[Tensor, "B S"]]:
    """At the place of every state, over all valid rollouts of its group that get as far, itself included: the sum of what
    they had still to be paid, and how many they are.

    What one rollout has still to be paid is a step function of the place, 0 after its last turn; the rises of all of them,
    in the order of places, add up to the sum.
    """
    B, S = place.shape
    ends = (place < NEVER).sum(1, keepdim=True)
    events = torch.nn.functional.pad(place, (0, 1), value=NEVER).scatter(1, ends, (turns * S)[:, None])
    rise = torch.diff(torch.nn.functional.pad(to_go, (1, 1)), dim=1)
    enters = torch.zeros_like(events).scatter_(1, ends, -1)
    enters[:, 0] += 1
    stride = S * (int(turns.max()) + 1) if B else 1
    counted = (events < NEVER) & valid[:, None]
    keys, order = (events + group[:, None] * stride)[counted].sort(stable=True)
    sums, counts = (torch.nn.functional.pad(x[counted][order].cumsum(0), (1, 0)) for x in (rise, enters))
    asked = place.clamp(max=stride - 1) + group[:, None] * stride
    at = torch.searchsorted(keys, asked, right=True)
    return sums[at], counts[at]


def _places(
    segments: Segments, response_mask: Bool[Tensor, "B T"]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, " B"]]:
    """turn·S + number within the turn of each segment, ascending and ``NEVER`` in the padding; turns of each trace."""
    B, S = segments.exists.shape
    begins = response_mask.clone()
    begins[:, 1:] &= ~response_mask[:, :-1]
    turn = segments.at_starts(begins.cumsum(1)) - 1
    number = torch.arange(S, device=turn.device).expand(B, S)
    opens = torch.ones_like(turn, dtype=torch.bool)
    opens[:, 1:] = turn[:, 1:] != turn[:, :-1]
    within = number - torch.where(opens, number, 0).cummax(1).values
    return torch.where(segments.exists, turn * S + within, NEVER), begins.sum(1)
