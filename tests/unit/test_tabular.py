"""What the method promises of bias, on a policy small enough to enumerate: no sampling, no slack.

Values: ``support`` never lies above the exact value, comes closer with every proposal and meets it once the
proposals hold every rewarded answer (docs/reference/math.md). Gradients: with λ = 1, leave-one-out and no scaling
the expected policy gradient over *all* groups is the exact one for any V̂, raw, made up or calibrated (property
6); it is not where a rollout's own reward is let in, where λ < 1 meets a wrong V̂, or where a boundary is placed
by the very token that follows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.values.proposals import Proposals, build_proposals
from tests.unit.tabular import AllGroups, TabularPolicy, Trace, rollouts_of, states_of
from tests.unit.tabular_checks import BIASED, EXACT, PLAIN, AnswerNow, made_up, probed_by, small_policy


def proposed_to_one(policy: TabularPolicy, given_by_others: list[int], proposes: str = "group") -> Proposals:
    """Proposals of a truncated rollout, row 0, whose siblings gave these answers."""
    reward_of = {trace[-1]: float(reward) for trace, reward in zip(policy.traces, policy.rewards, strict=True)}
    outcomes = torch.tensor([0.0, *(reward_of[answer] for answer in given_by_others)])
    answers = [None, *map(str, given_by_others)]
    return build_proposals(answers, outcomes, [0] * len(answers), None, proposes=proposes, max_proposals=99)


def values_of_all_states(policy: TabularPolicy, proposals: Proposals, kind: str = "support") -> torch.Tensor:
    """V̂ of every state of the tree, for the proposals of row 0."""
    numbers = [int(answer) for answer in proposals.answers[0]]
    log_pi = torch.zeros(len(policy.states), 1, proposals.valid.shape[1])
    for row, state in enumerate(policy.states):
        log_pi[row, 0, : len(numbers)] = policy.answer_probabilities(state).log()[numbers]
    utility = proposals.utility[:1].expand(len(policy.states), -1)
    return rr.importance_values(log_pi, utility, proposals.valid[:1].expand_as(utility), kind)[:, 0]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10**6), st.permutations(range(5)))
def test_support_comes_up_to_the_exact_value_as_proposals_are_added(seed: int, order: list[int]) -> None:
    policy = TabularPolicy.random((2, 2, 5), seed, answers_alone=True)
    exact = torch.tensor([policy.value(state) for state in policy.states])
    rewarded = {trace[-1] for trace, reward in zip(policy.traces, policy.rewards, strict=True) if reward > 0}
    bias = -exact
    for count in range(1, 6):
        values = values_of_all_states(policy, proposed_to_one(policy, order[:count]))
        assert (values >= 0).all()
        assert (values <= policy.rewards.max() + 1e-6).all()
        closer = values - exact
        assert (closer <= 1e-6).all(), "never above the exact value"
        assert (closer >= bias - 1e-6).all(), "no proposal takes it further away"
        if rewarded <= set(order[:count]):
            assert closer.abs().max() < 1e-6
        elif set(order[:count]) & rewarded:
            assert (closer < -1e-9).any(), "a rewarded answer is missing"
        bias = closer


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_self_normalized_lies_between_the_least_and_the_greatest_utility(seed: int, answers: list[int]) -> None:
    policy = TabularPolicy.random((2, 2, 5), seed, answers_alone=True)
    proposals = proposed_to_one(policy, answers, "group_all")
    assert len(proposals.answers[0]) == len(set(answers))
    utility = proposals.utility[0][proposals.valid[0]]
    values = values_of_all_states(policy, proposals, "self_normalized")
    assert (values >= utility.min() - 1e-6).all()
    assert (values <= utility.max() + 1e-6).all()
    if set(answers) == set(range(5)):
        exact = torch.tensor([policy.value(state) for state in policy.states])
        assert torch.allclose(values, exact.float(), atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_own_ratio_is_the_reward_at_the_last_state(tokens: int) -> None:
    policy = small_policy()
    groups = AllGroups(policy, 1)
    options = PLAIN | {"segmenter_kwargs": {"tokens": tokens}, "prior_from_group": False}
    config = rr.RRedCoTConfig(**options, value_estimator="own_ratio")
    probed = probed_by(groups.rollouts, config, policy.answer_probabilities)
    estimate = config.build_value_estimator()(probed)
    last = estimate.values.gather(1, (probed.num_segments - 1)[:, None])[:, 0]
    assert torch.allclose(last, groups.rollouts.outcomes, atol=1e-6)


def bias(groups: AllGroups, credit: rr.Credit) -> float:
    """Largest entry of E[∇] − ∇E[R]."""
    return float((groups.expected_gradient(credit.advantages) - groups.policy.exact_gradient).abs().max())


def probed_credit(groups: AllGroups, answer_now: AnswerNow, **options: object) -> rr.Credit:
    config = rr.RRedCoTConfig(**PLAIN | options)
    return rr.assign_credit(groups.rollouts, config, probed=probed_by(groups.rollouts, config, answer_now))


def table_of(value: Callable[[Trace], float], states: list[list[Trace]]) -> torch.Tensor:
    """(rows, states): ``value`` of every state; asked once for each."""
    known = {state: value(state) for state in {state for row in states for state in row}}
    return torch.tensor([[known[state] for state in row] for row in states])


def wrong_values(groups: AllGroups, own: float = 0.0) -> torch.Tensor:
    """Made up from the prefix and the siblings' rewards; ``own`` lets that share of the own reward in."""
    segments = rr.get_segmenter("fixed", tokens=1)(groups.rollouts)
    table = table_of(lambda state: float(made_up(2, seed=5)(state)[0]), states_of(groups.rollouts, segments))
    seen = groups.others_reward + own * groups.policy.rewards[groups.rows]
    return 3 * table * (0.5 + seen[:, None]).float() - 1


def test_the_exact_gradient_is_worth_comparing_with() -> None:
    assert small_policy().exact_gradient.abs().max() > 4 * BIASED
    assert float(AllGroups(small_policy()).probability.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_values_however_wrong_leave_the_gradient_exact(size: int, seed: int) -> None:
    groups = AllGroups(small_policy(seed=seed), size)
    credit = rr.assign_credit(groups.rollouts, rr.RRedCoTConfig(**PLAIN), values=wrong_values(groups))
    assert bias(groups, credit) < EXACT


@pytest.mark.parametrize("value_estimator", ["support", "self_normalized", "confidence"])
@pytest.mark.parametrize("prior_from_group", [True, False])
@pytest.mark.parametrize("honest", [True, False])
def test_raw_estimates_leave_the_gradient_exact(
    value_estimator: str, prior_from_group: bool, honest: bool
) -> None:
    groups = AllGroups(small_policy())
    answer_now = groups.policy.answer_probabilities if honest else made_up(3)
    credit = probed_credit(groups, answer_now, value_estimator=value_estimator, prior_from_group=prior_from_group)
    assert bias(groups, credit) < EXACT


def test_segments_of_several_tokens_and_a_cut_list_of_proposals_change_nothing() -> None:
    groups = AllGroups(small_policy((2, 2, 2, 2)))
    options = {"segmenter_kwargs": {"tokens": 2}, "value_kwargs": {"max_proposals": 1}, "clip": 0.3}
    assert bias(groups, probed_credit(groups, made_up(2), **options)) < EXACT


@pytest.mark.parametrize("value_estimator", ["support", "self_normalized"])
def test_negative_rewards_and_groups_that_are_a_batch_of_their_own(value_estimator: str) -> None:
    """Nothing about a rollout's own reward may come in through the batch either: least, greatest, number of rows."""
    policy = dataclasses.replace(small_policy((2, 2, 2)), rewards=small_policy((2, 2, 2)).rewards - 0.5)
    groups = AllGroups(policy)
    config = rr.RRedCoTConfig(**PLAIN, value_estimator=value_estimator)
    advantages = []
    for members in groups.members:
        rollouts = rollouts_of(policy, torch.tensor(members), [0] * groups.size)
        probed = probed_by(rollouts, config, made_up(3))
        advantages.append(rr.assign_credit(rollouts, config, probed=probed).advantages)
    found = groups.expected_gradient(torch.cat(advantages))
    assert torch.allclose(found, policy.exact_gradient, rtol=0, atol=EXACT)
    assert bias(groups, probed_credit(groups, made_up(3), value_estimator=value_estimator)) < EXACT


@pytest.mark.parametrize("value_estimator", ["support", "self_normalized"])
def test_the_own_answer_among_the_proposals_biases_the_gradient(value_estimator: str) -> None:
    groups = AllGroups(small_policy())
    credit = probed_credit(groups, made_up(3), value_estimator=value_estimator, leave_one_out=False)
    assert bias(groups, credit) > BIASED


def test_the_own_reward_in_the_prior_biases_the_gradient() -> None:
    """GRPO's mean: the expectation shrinks by (G − 1) / G."""
    groups = AllGroups(small_policy())
    credit = rr.assign_credit(groups.rollouts, rr.RRedCoTConfig(**PLAIN, leave_one_out=False))
    expected = groups.expected_gradient(credit.advantages)
    assert torch.allclose(expected, groups.policy.exact_gradient / 2, atol=EXACT)
    alone = rr.assign_credit(groups.rollouts, rr.RRedCoTConfig(**PLAIN))
    assert bias(groups, alone) < EXACT


def test_the_own_reward_in_explicit_values_biases_the_gradient() -> None:
    groups = AllGroups(small_policy())
    values = wrong_values(groups, own=1.0)
    assert bias(groups, rr.assign_credit(groups.rollouts, rr.RRedCoTConfig(**PLAIN), values=values)) > BIASED


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_with_a_smaller_lambda_only_exact_values_will_do(lam: float) -> None:
    groups = AllGroups(small_policy())
    config = rr.RRedCoTConfig(**PLAIN, lam=lam)
    assert bias(groups, rr.assign_credit(groups.rollouts, config, values=wrong_values(groups))) > BIASED
    segments = config.build_segmenter()(groups.rollouts)
    exact = table_of(groups.policy.value, states_of(groups.rollouts, segments))
    assert bias(groups, rr.assign_credit(groups.rollouts, config, values=exact)) < EXACT


def test_raw_support_with_lambda_zero_is_biased() -> None:
    groups = AllGroups(small_policy())
    assert bias(groups, probed_credit(groups, made_up(3), lam=0.0)) > BIASED


def test_own_ratio_is_biased_for_it_looks_at_its_own_future() -> None:
    groups = AllGroups(small_policy())
    assert bias(groups, probed_credit(groups, made_up(3), value_estimator="own_ratio")) > BIASED


def segments_cut_at(rollouts: rr.Rollouts, first_of_segment: torch.Tensor) -> rr.Segments:
    """A segment begins at every token where ``first_of_segment`` is true, and at the first."""
    ids = first_of_segment.long()
    ids[:, 0] = 0
    ids = ids.cumsum(dim=1)
    return rr.Segments(ids, ids[:, -1] + 1)


def test_a_boundary_must_not_depend_on_the_token_behind_it() -> None:
    """Cut *behind* a token that calls for it: exact. Cut *before* it: the token picks its own baseline."""
    groups = AllGroups(small_policy())
    marker = groups.rollouts.token_ids == 0
    behind = segments_cut_at(groups.rollouts, marker.roll(1, dims=1))
    before = segments_cut_at(groups.rollouts, marker)
    found = []
    for segments in (behind, before):
        values = table_of(lambda state: float(made_up(2)(state)[0]), states_of(groups.rollouts, segments))
        credit = rr.assign_credit(groups.rollouts, rr.RRedCoTConfig(**PLAIN), segments=segments, values=values)
        found.append(bias(groups, credit))
    assert found[0] < EXACT
    assert found[1] > BIASED
