"""Rewards, penalties and tensors as hosts may hand them over: one odd row or number changes nothing for the others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed

NAN, INF = float("nan"), float("inf")
TWO_TOKENS = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 2}}


def batch(outcomes: list[float], groups: Any = None, length: int = 8, **fields: Any) -> rr.Rollouts:
    """Responses whose signals are drawn by their row."""
    generator = torch.Generator().manual_seed(0)
    rows = len(outcomes)
    drawn = [torch.rand(2, length, generator=generator) for _ in range(rows)]
    rewards = torch.zeros(rows, length)
    rewards[:, -1] = torch.tensor(outcomes)
    given: dict[str, Any] = {
        "log_probs": -torch.stack([own[0] for own in drawn]),
        "entropies": torch.stack([own[1] for own in drawn]),
        "sum_pi_squared": torch.stack([own[1] for own in drawn]),
    }
    tokens, mask = torch.zeros(rows, length, dtype=torch.int64), torch.ones(rows, length).bool()
    ids = [0] * rows if groups is None else groups
    return rr.Rollouts(tokens, mask, rewards, ids, **{**given, **fields})


def advantages(rollouts: rr.Rollouts, **options: Any) -> torch.Tensor:
    return rr.assign_credit(rollouts, rr.RRedCoTConfig.from_mapping({**TWO_TOKENS, **options})).advantages


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "whiten", "none"])
@pytest.mark.parametrize(
    "options", [{"segmenter": "none"}, {"value_estimator": "confidence"}, {"baseline": "token"}]
)
def test_a_row_without_a_reward_counts_for_nobody(options: dict[str, Any], scale: str, bad: float) -> None:
    given: dict[str, Any] = {"calibrate": "none", **options, "scale": scale}
    if options == {"segmenter": "none"}:
        given["segmenter_kwargs"] = {}
    without = advantages(batch([10.0, 10.2, 9.9, 10.0]), **given)
    with_it = advantages(batch([10.0, 10.2, 9.9, 10.0, bad]), **given)
    torch.testing.assert_close(with_it[:4], without, rtol=1e-4, atol=1e-5)
    assert float(with_it[4].abs().max()) == 0.0


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@pytest.mark.parametrize("reward", [0.1, 10_000.1])
def test_a_batch_of_equal_rewards_earns_nothing(scale: str, reward: float) -> None:
    """In float32 the deviation of eight equal numbers is that of their rounding."""
    options = {"value_estimator": "confidence", "calibrate": "none", "baseline": "value", "scale": scale}
    assert float(advantages(batch([reward] * 8), **options).abs().max()) == 0.0


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_that_differ_by_rounding_are_equal(scale: str, score: float) -> None:
    """A third taken from the last token and put on others: in float32 the rest is not what is left."""
    options = {"value_estimator": "confidence", "calibrate": "none", "baseline": "value", "scale": scale}
    rounded = batch([score] * 8, length=40)
    rewards = rounded.rewards.clone()
    rewards[:, :-1] = torch.rand(8, 39, generator=torch.Generator().manual_seed(0))
    rewards[:, -1] -= rewards[:, :-1].sum(1)
    rounded = dataclasses.replace(rounded, rewards=rewards)
    assert 0 < float((rounded.outcomes - score).abs().max()) < 1e-5
    found = advantages(rounded, turn_rewards="redistribute", **options)
    assert float(found.abs().max()) == 0.0
    alone = advantages(
        dataclasses.replace(rounded, group_ids=list(range(8))), turn_rewards="redistribute", **options
    )
    assert scale == "batch_std" or float(alone.abs().max()) > 0, "one rollout of each prompt has a deviation of 1"


@pytest.mark.parametrize(
    "options",
    [{"value_estimator": "siblings", "value_kwargs": {"by": "tokens"}}, {"value_estimator": "confidence"}],
)
def test_rewards_of_tokens_that_float32_cannot_reckon_with_are_nobodys(options: dict[str, Any]) -> None:
    """They may cancel, and penalties may stand beside them."""
    plain = batch([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], groups=[0, 0, 0, 0, 1, 1], length=40)
    found = []
    for row in (
        torch.zeros(40).index_fill(0, torch.tensor([39]), torch.nan),
        *(torch.zeros(40) for _ in range(2)),
    ):
        found.append(row)
    found[1][[0, 1]], found[1][[32, 33]] = 3e38, -3e38
    found[2][39] = -2e30
    credits = []
    for row in found:
        rewards = plain.rewards.clone()
        rewards[0] = row
        penalties = torch.full_like(rewards, -0.001)
        odd = dataclasses.replace(plain, rewards=rewards + penalties, penalties=penalties)
        assert not bool(torch.isfinite(odd.outcomes[0]) | torch.isfinite(odd.scores[0]))
        credits.append(advantages(odd, **options))
    for credit in credits:
        assert float(credit[0].abs().max()) == 0.0
        torch.testing.assert_close(credit, credits[0], rtol=1e-5, atol=1e-6)


def test_how_a_sum_is_rounded_is_not_up_to_the_padding() -> None:
    rewards = torch.rand(200, 50, generator=torch.Generator().manual_seed(0))
    found = []
    for width in (50, 64, 200, 1000):
        wide = torch.nn.functional.pad(rewards, (0, width - 50))
        mask = torch.arange(width).expand(200, -1) < 50
        found.append(rr.Rollouts(torch.zeros(200, width, dtype=torch.int64), mask, wide, [0] * 200).outcomes)
    assert all(torch.equal(own, found[0]) for own in found)


def test_equal_scores_stay_equal_whatever_penalties_sum_to() -> None:
    penalties = -torch.rand(8, 2000, generator=torch.Generator().manual_seed(0))
    plain = batch([1.0] * 8, length=2000)
    scores = dataclasses.replace(plain, rewards=plain.rewards + penalties, penalties=penalties).scores
    assert float(penalties.sum(1).abs().min()) > 900
    assert float((scores - 1.0).abs().max()) < 2e-7


def test_penalties_of_masked_tokens_are_nobodys() -> None:
    rollouts = batch([1.0, 0.0, 1.0, 0.0])
    mask = rollouts.response_mask.clone()
    mask[:, 4] = False
    options = {"baseline": "token", "calibrate": "none", "scale": "none"}
    found = []
    for on_masked in (0.0, -5.0, NAN):
        penalties = torch.zeros(4, 8)
        penalties[:, 4] = on_masked
        own = dataclasses.replace(rollouts, response_mask=mask, penalties=penalties)
        found.append(advantages(own, **options))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_groups_may_be_a_tensor() -> None:
    ids = [0, 0, 1, 1]
    as_list, as_tensor = (advantages(batch([1.0, 0.0, 1.0, 0.0], own)) for own in (ids, torch.tensor(ids)))
    assert torch.equal(as_list, as_tensor) and float(as_list.abs().max()) > 0.5


@pytest.mark.parametrize("baseline", ["least_variance", "token", "trace"])
def test_tensors_of_a_graph_give_credit_without_one(baseline: str) -> None:
    plain = batch([1.0, 0.0, 1.0, 0.0], penalties=torch.zeros(4, 8))
    names = ("log_probs", "entropies", "sum_pi_squared", "penalties")
    fields = {name: getattr(plain, name).clone().requires_grad_() for name in names}
    fields["rewards"] = plain.rewards.clone().requires_grad_()
    found = advantages(dataclasses.replace(plain, **fields), baseline=baseline)
    assert not found.requires_grad
    assert torch.equal(found, advantages(plain, baseline=baseline))


@pytest.mark.parametrize("options", [{}, {"value_estimator": "confidence"}, {"baseline": "token"}])
def test_rewards_as_large_as_float32_has_do_not_stop_a_run(options: dict[str, Any]) -> None:
    found = advantages(batch([3e38, -3e38, 1.0, 0.0]), **options)
    assert torch.isfinite(found).all() and float(found[:2].abs().max()) == 0.0


@pytest.mark.parametrize("options", [{"calibrate": "none"}, {"preset": "paper"}, {}, {"leave_one_out": False}])
def test_values_are_those_of_the_reward_without_penalties(options: dict[str, Any]) -> None:
    plain, penalties = batch([1.0, 0.0, 1.0]), torch.full((3, 8), -0.1)
    penalized = dataclasses.replace(plain, rewards=plain.rewards + penalties, penalties=penalties)
    given = options if "preset" in options else {"value_estimator": "support", **options}
    config = rr.RRedCoTConfig.from_mapping({**TWO_TOKENS, **given})
    segments = config.build_segmenter()(plain)
    log_pi = torch.full((3, segments.max_segments, 1), -6.0)
    probed = Probed(log_pi, torch.ones(3, 1), torch.ones(3, 1).bool(), segments.num_segments)
    found = []
    for rollouts in (plain, penalized):
        calibrator = config.build_calibrator()
        for _ in range(2):
            credit = rr.assign_credit(rollouts, config, segments=segments, probed=probed, calibrator=calibrator)
        found.append(credit)
    torch.testing.assert_close(found[1].values, found[0].values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].deltas, found[0].deltas - 0.2, atol=1e-5, rtol=1e-5)


def test_without_refinement_iterative_leaves_penalties_to_their_tokens() -> None:
    """At alpha = 1 every state is worth the score, so the last segment changes nothing."""
    penalties = torch.zeros(4, 8)
    penalties[:, :4] = -0.25
    plain = batch([1.0, 0.0, 1.0, 0.0])
    rollouts = dataclasses.replace(plain, rewards=plain.rewards + penalties, penalties=penalties)
    values = {
        "value_estimator": "iterative",
        "value_kwargs": {"base": "confidence", "alpha": 1.0},
        "calibrate": "none",
    }
    config = rr.RRedCoTConfig.from_mapping({**TWO_TOKENS, **values, "lam": 0.0, "scale": "none"})
    deltas = rr.assign_credit(rollouts, config).deltas
    assert float(deltas[:, -1].abs().max()) < 1e-6
