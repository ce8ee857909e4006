"""Rewards on the way: where they count, what they are measured from, and what happens to broken ones."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.credit.turn_rewards import expected_of_others
from rredcot_plugin.groups import group_index

TURNS = rr.RRedCoTConfig(segmenter="turn", scale="none", calibrate="none", baseline="value")


def three_turns(*rewards: tuple[float, ...], group_ids: list[int] | None = None) -> rr.Rollouts:
    """One-token turns with one-token answers of a tool between them; a reward for each turn of each rollout."""
    width = 2 * max(map(len, rewards)) - 1
    mask, paid = torch.zeros(len(rewards), width).bool(), torch.zeros(len(rewards), width)
    for row, own in enumerate(rewards):
        mask[row, : 2 * len(own) : 2] = True
        paid[row, : 2 * len(own) : 2] = torch.tensor(own)
    ids = torch.arange(width).expand(mask.shape)
    return rr.Rollouts(ids, mask, paid, group_ids or [0] * len(rewards))


def of_turns(per_token: torch.Tensor) -> torch.Tensor:
    return per_token[:, ::2]


def test_a_reward_of_the_second_turn_counts_for_two_turns() -> None:
    credit = rr.assign_credit(three_turns((0.0, 0.5, 1.0)), TURNS, values=torch.zeros(1, 3))
    assert of_turns(credit.advantages).tolist() == [[1.5, 1.5, 1.0]]
    assert credit.segment_rewards.tolist() == [[0.0, 0.5, 1.0]]
    spread = replace(TURNS, turn_rewards="redistribute")
    credit = rr.assign_credit(three_turns((0.0, 0.5, 1.0)), spread, values=torch.zeros(1, 3))
    assert of_turns(credit.advantages).tolist() == [[1.5, 1.5, 1.5]]
    assert credit.segment_rewards.tolist() == [[0.0, 0.0, 1.5]]


def test_values_that_are_given_have_them_in_already() -> None:
    values = torch.tensor([[1.25, 1.75, 0.5]])
    credit = rr.assign_credit(three_turns((0.0, 0.5, 1.0)), TURNS, values=values)
    assert torch.equal(credit.values, values)
    assert credit.deltas.tolist() == [[0.5, -0.75, 0.5]]
    assert of_turns(credit.advantages).tolist() == [[0.25, -0.25, 0.5]]


def test_what_the_others_got_is_what_they_are_measured_from() -> None:
    rollouts = three_turns((1.0, 2.0, 0.0), (4.0, 0.0), (3.0, 5.0, 0.0))
    credit = rr.assign_credit(rollouts, TURNS)
    # the outcomes are 0; each mean is over the others that have the turn, and one more that got nothing
    expected = [[(4 + 8) / 3, 5 / 3, 0], [(3 + 8) / 3, (2 + 5) / 3, 0], [(3 + 4) / 3, 2 / 3, 0]]
    assert torch.allclose(credit.values, torch.tensor(expected))
    assert torch.allclose(credit.baselines, torch.tensor(expected))
    assert torch.allclose(credit.segment_rewards.sum(1), rollouts.outcomes)
    to_go = torch.tensor([[3.0, 2, 0], [4, 0, 0], [8, 5, 0]])
    expected = torch.where(credit.segments.exists, to_go - torch.tensor(expected), 0.0)
    assert torch.allclose(of_turns(credit.advantages), expected)


@pytest.mark.parametrize("baseline", ["trace", "value", "token"])
def test_other_baselines_are_of_the_outcome_and_get_theirs_beside(baseline: str) -> None:
    plain = three_turns((0.0, 0.0, 1.0), (0.0, 0.5), (0.0, 0.0, 0.25))
    signals = {"log_probs": torch.full((3, 5), -0.5), "sum_pi_squared": torch.full((3, 5), 0.5)}
    plain = replace(plain, **signals)
    paid = replace(three_turns((1.0, 2.0, 1.0), (4.0, 0.5), (3.0, 5.0, 0.25)), **signals)
    own = replace(TURNS, baseline=baseline, value_estimator="confidence")
    without, credit = rr.assign_credit(plain, own), rr.assign_credit(paid, own)
    expected = torch.tensor([[(4 + 8) / 3, 5 / 3, 0], [(3 + 8) / 3, 7 / 3, 0], [(3 + 4) / 3, 2 / 3, 0]])
    assert torch.allclose(credit.baselines - without.baselines, expected, atol=1e-6)
    to_go = torch.tensor([[3.0, 2, 0], [4, 0, 0], [8, 5, 0]])
    added = torch.where(credit.segments.exists, to_go - expected, 0.0)
    assert torch.allclose(of_turns(credit.advantages - without.advantages), added, atol=1e-6)


def told_apart(rewards: list[float], sure: list[float], group_ids: list[int]) -> rr.Rollouts:
    """Three turns, of which the second earns what the first one decides; ``sure``: the log-prob of the first."""
    plain = three_turns(*[(0.0, reward, 0.0) for reward in rewards], group_ids=group_ids)
    log_probs = torch.full(plain.rewards.shape, -0.5)
    log_probs[:, 0] = torch.tensor(sure)
    return replace(plain, log_probs=log_probs)


def test_least_variance_learns_which_states_are_paid_later() -> None:
    rewards, sure = [1.0, 0.0] * 8, [-0.01, -3.0] * 8
    rollouts = told_apart(rewards, sure, list(range(16)))
    own = replace(TURNS, baseline="least_variance", value_estimator="confidence", calibrate="outcome")
    credit = rr.assign_credit(rollouts, own)
    assert credit.baselines is not None
    assert (credit.baselines[::2, 1] > 0.7).all() and (credit.baselines[1::2, 1] < 0.3).all()
    assert credit.baselines[:, 0].max() - credit.baselines[:, 0].min() < 0.2, "the prompts are alike"
    to_go = torch.tensor(rewards)[:, None] * torch.tensor([[1.0, 1.0, 0.0]])
    assert torch.allclose(of_turns(credit.advantages), to_go - credit.baselines, atol=1e-6)


def test_least_variance_has_what_siblings_were_paid_where_nothing_can_be_fitted() -> None:
    plain = three_turns((2.0, 1.0, 0.0), (2.0, 1.0, 0.0), (2.0, 1.0, 0.0), (2.0, 1.0, 0.0), group_ids=[0, 0, 1, 1])
    rollouts = replace(plain, log_probs=torch.full(plain.rewards.shape, -0.5))
    own = replace(TURNS, baseline="least_variance", value_estimator="confidence", calibrate="outcome")
    alone = rr.assign_credit(rollouts.take([0]), own)
    assert torch.isfinite(alone.advantages).all()
    credit = rr.assign_credit(rollouts, own)
    assert credit.baselines is not None
    assert torch.allclose(credit.baselines[:, 0], torch.full((4,), 3.0))
    assert (credit.baselines[:, 1] > credit.baselines[:, 2]).all(), "states are told apart by their place"


def test_a_resumed_run_knows_what_was_paid_on_the_way() -> None:
    own = replace(TURNS, baseline="least_variance", value_estimator="confidence", calibrate="outcome")
    first = told_apart([1.0, 0.0] * 4, [-0.01, -3.0] * 4, list(range(8)))
    then = told_apart([0.0, 1.0] * 4, [-0.01, -3.0] * 4, list(range(8)))
    going_on = own.build_calibrator()
    rr.assign_credit(first, own, calibrator=going_on)
    resumed = own.build_calibrator()
    resumed.load_state_dict(going_on.state_dict())
    of_old_version = own.build_calibrator()
    state = going_on.state_dict()
    del state["paid"]
    of_old_version.load_state_dict(state)
    found, again, old = (
        rr.assign_credit(then, own, calibrator=c).advantages for c in (going_on, resumed, of_old_version)
    )
    assert torch.equal(found, again)
    assert torch.isfinite(old).all() and not torch.equal(found, old)


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "whiten"])
def test_a_reward_at_the_last_token_alone_changes_nothing(scale: str) -> None:
    rollouts = three_turns((0.0, 0.0, 1.0), (0.0, 0.5), (0.0, 0.0, 0.25))
    penalties = torch.where(rollouts.response_mask, -0.1, 0.0)
    for given in (rollouts, replace(rollouts, rewards=rollouts.rewards + penalties, penalties=penalties)):
        kept, spread = (
            rr.assign_credit(given, replace(TURNS, scale=scale, turn_rewards=name))
            for name in ("keep", "redistribute")
        )
        for name in (field.name for field in fields(rr.Credit) if field.name not in ("segments", "metrics")):
            assert torch.equal(getattr(kept, name), getattr(spread, name)), name
        assert kept.metrics == spread.metrics


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_penalties_are_no_rewards_on_the_way_and_both_add_up(lam: float) -> None:
    own = replace(TURNS, lam=lam)
    paid, plain = three_turns((0.5, 0.25, 1.0), (0.25, 0.0)), three_turns((0.0, 0.0, 1.0), (0.0, 0.0))
    penalties = torch.where(paid.response_mask, -0.125, 0.0)
    fined, fined_plain = (
        replace(rollouts, rewards=rollouts.rewards + penalties, penalties=penalties) for rollouts in (paid, plain)
    )
    credit = {id(rollouts): rr.assign_credit(rollouts, own) for rollouts in (paid, plain, fined, fined_plain)}
    for name in ("advantages", "values", "deltas"):
        of_paid, of_plain, of_fined, rest = (getattr(found, name) for found in credit.values())
        assert not torch.allclose(of_paid, of_plain, atol=0.1)
        assert torch.allclose(of_fined - rest, of_paid - of_plain, atol=1e-6), name
    assert torch.allclose(credit[id(fined)].segment_rewards.sum(1), fined.outcomes)


def test_a_broken_reward_on_the_way_costs_its_own_row_alone() -> None:
    broken = three_turns((float("nan"), 0.0, 1.0), (1.0, 2.0, 0.5), (0.5, 1.0, 0.0))
    credit = rr.assign_credit(broken, TURNS)
    for name in ("advantages", "returns", "values", "segment_rewards", "deltas", "baselines"):
        assert torch.isfinite(getattr(credit, name)).all(), name
    assert (credit.advantages[0] == 0).all()
    assert credit.metrics["rredcot/fallback/nonfinite_reward/mean"] == pytest.approx(1 / 3)
    alone = rr.assign_credit(broken.take([1, 2]), TURNS)
    assert torch.allclose(credit.advantages[1:], alone.advantages), "it is nobody's sibling"
    infinite = three_turns((float("inf"), 0.0, 1.0), (1.0, 2.0, 0.5), (0.5, 1.0, 0.0))
    assert torch.equal(rr.assign_credit(infinite, TURNS).advantages, credit.advantages)


def test_one_segment_a_trace_is_grpo_of_the_sum() -> None:
    rollouts = three_turns((0.5, 0.0, 1.0), (0.25, 0.5))
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none", scale="none"))
    assert of_turns(credit.advantages).tolist() == [[0.375] * 3, [-0.375, -0.375, 0.0]]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_rewards_on_the_way_have_a_lambda_of_their_own(lam: float) -> None:
    rollouts = three_turns((1.0, 2.0, 0.5), (4.0, 0.25), (3.0, 5.0, 0.0))
    outcome = replace(rollouts, rewards=torch.where(rollouts.rewards < 1, rollouts.rewards, 0.0))
    own = rr.assign_credit(rollouts, replace(TURNS, lam_turn_rewards=lam))
    plain, both = rr.assign_credit(outcome, TURNS), rr.assign_credit(rollouts, TURNS)
    paid = both.deltas - plain.deltas
    expected = rr.segment_gae(paid, both.segments.num_segments, lam)
    assert torch.allclose(of_turns(own.advantages - plain.advantages), expected, atol=1e-6)
    for name in ("values", "segment_rewards", "deltas", "baselines"):
        assert torch.equal(getattr(own, name), getattr(both, name)), name
    assert torch.allclose(own.advantages, both.advantages, atol=1e-6) == (lam == 1.0)


def test_lambda_of_rewards_on_the_way_is_that_of_the_outcome_unless_it_is_given() -> None:
    rollouts = three_turns((1.0, 2.0, 0.5), (4.0, 0.25), (3.0, 5.0, 0.0))
    lower = replace(TURNS, lam=0.5)
    alike = rr.assign_credit(rollouts, replace(lower, lam_turn_rewards=0.5))
    assert torch.allclose(rr.assign_credit(rollouts, lower).advantages, alike.advantages, atol=1e-6)
    values = torch.tensor([[1.25, 1.75, 0.5], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    whole = [
        rr.assign_credit(rollouts, own, values=values) for own in (TURNS, replace(TURNS, lam_turn_rewards=0.0))
    ]
    assert torch.equal(whole[0].advantages, whole[1].advantages), "given values are of all rewards"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turn_rewards": "redistribute"}, "turn_rewards=redistribute leaves no rewards before"),
        ({"value_estimator": "critic"}, "the values of a critic are of all rewards"),
        ({"lam_turn_rewards": 1.5}, "lam_turn_rewards=1.5"),
        ({"mode": "weighted"}, "mode=weighted"),
    ],
)
def test_what_has_no_rewards_on_the_way_of_its_own_has_no_lambda_for_them(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rr.RRedCoTConfig(**{"lam_turn_rewards": 0.5, **options})


# ---- against a slow reference


def random_batch(seed: int) -> tuple[rr.Rollouts, rr.Segments]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(9, 14, generator=generator) > 0.3
    mask[4] = False
    rewards = torch.rand(9, 14, generator=generator)
    rollouts = rr.Rollouts(torch.zeros(9, 14).long(), mask, rewards, [0, 1, 0, 1, 0, 1, 0, "alone", 0])
    cut = (torch.rand(9, 14, generator=generator) > 0.5) & mask
    ids = torch.where(mask, cut.cumsum(1), -1)
    first = torch.where(mask, ids, 99).amin(1, keepdim=True)
    ids = torch.where(mask, ids - first, -1)
    return rollouts, rr.Segments(ids, (ids.amax(1) + 1).clamp(min=0))


def slow(paid: torch.Tensor, rollouts: rr.Rollouts, segments: rr.Segments, valid: list[bool]) -> torch.Tensor:
    """One state after the other, by (turn, number within the turn)."""
    places: list[list[tuple[int, int]]] = []
    turns: list[int] = []
    for row, mask in enumerate(rollouts.response_mask.tolist()):
        turn = [sum(mask[i] and not (i and mask[i - 1]) for i in range(t + 1)) - 1 for t in range(len(mask))]
        own = [turn[t] for t in segments.starts[row, : int(segments.num_segments[row])].tolist()]
        places.append([(number, own[:state].count(number)) for state, number in enumerate(own)])
        turns.append(turn[-1] + 1)
    found = torch.zeros(paid.shape)
    for row, own in enumerate(places):
        for state, place in enumerate(own):
            told: dict[bool, list[float]] = {True: [], False: []}
            for other in range(len(places)):
                if other != row and valid[other] and turns[other] > place[0]:
                    at = max(i for i, theirs in enumerate(places[other]) if theirs <= place)
                    sibling = rollouts.group_ids[other] == rollouts.group_ids[row]
                    told[sibling].append(float(paid[other, at:].sum()))
            elsewhere = sum(told[False]) / max(len(told[False]), 1)
            found[row, state] = (sum(told[True]) + elsewhere) / (len(told[True]) + 1)
    return found


def test_one_rollout_of_each_prompt_is_measured_from_the_other_prompts() -> None:
    rollouts = three_turns((1.0, 2.0, 0.0), (4.0, 0.0), (3.0, 5.0, 0.0), group_ids=[0, 1, 2])
    credit = rr.assign_credit(rollouts, TURNS)
    expected = [[(4 + 8) / 2, 5 / 2, 0], [(3 + 8) / 2, (2 + 5) / 2, 0], [(3 + 4) / 2, 2 / 2, 0]]
    assert torch.allclose(credit.baselines, torch.tensor(expected))


def test_a_small_group_leans_on_the_others() -> None:
    rollouts = three_turns((1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (9.0, 0.0), group_ids=[0, 0, 1, 1])
    credit = rr.assign_credit(rollouts, TURNS)
    expected = torch.tensor([(2 + 6) / 2, (1 + 6) / 2, (9 + 1.5) / 2, (3 + 1.5) / 2])
    assert torch.allclose(credit.baselines[:, 0], expected)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_expected_as_a_slow_reference_finds_it(seed: int) -> None:
    rollouts, segments = random_batch(seed)
    paid = torch.where(segments.exists, torch.rand(segments.exists.shape), 0.0)
    valid = torch.ones(9).bool()
    valid[2] = False
    group = group_index(rollouts.group_ids)
    found = expected_of_others(paid, segments, rollouts.response_mask, group, valid=valid)
    assert torch.allclose(found, slow(paid, rollouts, segments, valid.tolist()), atol=1e-6)
    assert (found[7, :1] > 0).all() and (found[4] == 0).all(), "alone: as the other groups; empty"
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
    moved = rr.Segments(segments.segment_ids[order], segments.num_segments[order])
    again = expected_of_others(paid[order], moved, rollouts.response_mask[order], group[order], valid=valid[order])
    assert torch.allclose(again, found[order], atol=1e-6)


def test_rollouts_without_any_column_expect_nothing() -> None:
    nothing = rr.Segments(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    mask, valid = torch.zeros(2, 0, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    found = expected_of_others(torch.zeros(2, 1), nothing, mask, torch.tensor([0, 1]), valid=valid)
    assert found.tolist() == [[0.0], [0.0]]
