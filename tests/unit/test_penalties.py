"""Penalties that are still to come are in what advantages are measured from: no offset by position, no noise of its own."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.credit.shapers import ErrorPenalty
from rredcot_plugin.testing import text_rollouts

GROUPS, SIZE = 6, 6


def rollouts_with(kl: float) -> rr.Rollouts:
    """Rewards of 0 and 1, and about ``kl`` of penalties spread over each trace."""
    draw = torch.Generator().manual_seed(3)
    rewards = (torch.rand(GROUPS * SIZE, generator=draw) < 0.5).float().tolist()
    texts = ["".join("ab cd ef. " for _ in range(6))] * (GROUPS * SIZE)
    rollouts = text_rollouts(texts, rewards, group_ids=[i // SIZE for i in range(GROUPS * SIZE)])
    shape, mask = rollouts.rewards.shape, rollouts.response_mask
    noise = 1 + 0.5 * torch.randn(shape, generator=draw)
    penalties = torch.where(mask, -kl / mask.sum(1, keepdim=True) * noise, 0.0)
    log_probs = torch.where(mask, -torch.rand(shape, generator=draw), 0.0)
    return dataclasses.replace(
        rollouts, log_probs=log_probs, penalties=penalties, rewards=rollouts.rewards + penalties
    )


@pytest.mark.parametrize("baseline", ["least_variance", "trace", "value"])
def test_advantages_hardly_grow_with_penalties(baseline: str) -> None:
    config = rr.RRedCoTConfig.from_mapping(
        {"value_estimator": "confidence", "baseline": baseline, "scale": "none"}
    )
    square, by_place = [], []
    for kl in (0.0, 3.0):
        rollouts = rollouts_with(kl)
        advantages, mask = rr.assign_credit(rollouts, config).advantages, rollouts.response_mask
        square.append(float(advantages[mask].square().mean()))
        by_place.append(float((advantages * mask).sum(0)[:50].std() / GROUPS / SIZE))
    assert square[1] < 1.5 * square[0], "with 3 of penalties in every trace, unmeasured, it would be ten times"
    assert by_place[1] < 0.2, "and early tokens would earn 3 less than late ones"


@pytest.mark.parametrize("baseline", ["least_variance", "trace", "value"])
def test_the_expectation_is_another_rollouts(baseline: str) -> None:
    """What a trace pays itself never enters its own baseline."""
    config = rr.RRedCoTConfig.from_mapping(
        {"value_estimator": "confidence", "baseline": baseline, "scale": "none"}
    )
    rollouts = rollouts_with(1.0)
    assert rollouts.penalties is not None
    extra = torch.zeros_like(rollouts.rewards)
    extra[4, 30] = -5.0
    changed = dataclasses.replace(rollouts, penalties=rollouts.penalties + extra, rewards=rollouts.rewards + extra)
    credit = []
    for each in (rollouts, changed):
        calibrator = config.build_calibrator()
        rr.assign_credit(
            rollouts, config, calibrator=calibrator
        )  # later steps have the span of rewards from a past
        credit.append(rr.assign_credit(each, config, calibrator=calibrator))
    before, after = credit
    ids, own = before.segments.segment_ids[4], int(before.segments.segment_ids[4, 30])
    assert 0 < own < int(ids.max())
    assert torch.allclose(before.baselines[4], after.baselines[4], atol=1e-5)
    difference = (after.advantages - before.advantages)[4]
    assert torch.allclose(difference[(ids >= 0) & (ids <= own)], torch.tensor(-5.0), atol=1e-4), (
        "what comes counts"
    )
    assert torch.allclose(difference[ids > own], torch.tensor(0.0), atol=1e-4), "what is past does not"


def test_credit_sums_to_the_reward() -> None:
    rollouts = rollouts_with(2.0)
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig.from_mapping({"value_estimator": "confidence"}))
    assert torch.allclose(credit.segment_rewards.sum(1), rollouts.outcomes, atol=1e-5)


def test_shapers_compare_scores_with_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing trace is below its group's mean, whatever the mean penalty is."""
    seen = []

    def watched(self, deltas, segments, outcome, stats):  # type: ignore[no-untyped-def]
        seen.append((outcome, stats.mean))
        return deltas

    monkeypatch.setattr(ErrorPenalty, "__call__", watched)
    config = rr.RRedCoTConfig.from_mapping({"value_estimator": "confidence", "shapers": ["error_penalty"]})
    rollouts = rollouts_with(2.0)
    rr.assign_credit(rollouts, config)
    (outcome, mean), *_ = seen
    assert set(outcome.round(decimals=4).tolist()) <= {0.0, 1.0}
    assert torch.allclose(mean, outcome.view(GROUPS, SIZE).mean(1).repeat_interleave(SIZE), atol=1e-5)


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@pytest.mark.parametrize(
    "options", [{}, {"baseline": "value"}, {"baseline": "trace"}, {"lam": 0.5, "baseline": "value"}]
)
def test_equal_scores_do_not_make_a_reward_of_penalties(scale: str, options: dict[str, object]) -> None:
    """A deviation of penalties alone is no divisor: without rewards to learn from, only penalties are left, as they are."""
    config = rr.RRedCoTConfig.from_mapping({"value_estimator": "confidence", "scale": scale, **options})
    with_kl, scores = [], torch.zeros(GROUPS, SIZE)
    scores[1, ::2] = 1.0  # the others failed
    for kl in (0.0, 0.02):
        rollouts = rollouts_with(kl)
        penalties, last = rollouts.penalties, rollouts.response_mask.sum(1) - 1
        assert penalties is not None
        rewards = penalties.scatter_add(1, last[:, None], scores.view(-1, 1))
        with_kl.append(rr.assign_credit(dataclasses.replace(rollouts, rewards=rewards), config).advantages)
    failed = torch.arange(GROUPS * SIZE) // SIZE != 1
    assert float((with_kl[1] - with_kl[0])[failed].abs().max()) < 0.05
    assert float((with_kl[1] - with_kl[0]).abs().max()) < 0.05, "and in the other one what is added is the penalty"
    assert float(with_kl[0][~failed].abs().max()) > 0.5


def test_at_any_lambda_what_was_expected_is_no_offset() -> None:
    """Where all pay the same at the same place, penalties change nothing."""
    rollouts, own = rollouts_with(0.0), []
    for kl in (0.0, 3.0):
        mask = rollouts.response_mask
        penalties = torch.where(mask, -kl / mask.sum(1, keepdim=True), 0.0)
        for lam in (1.0, 0.5, 0.0):
            config = rr.RRedCoTConfig.from_mapping(
                {"value_estimator": "confidence", "baseline": "value", "segmenter": "fixed", "lam": lam}
            )
            paid = dataclasses.replace(rollouts, penalties=penalties, rewards=rollouts.rewards + penalties)
            own.append(rr.assign_credit(paid, config).advantages)
    for without, paid_by_all in zip(own[:3], own[3:], strict=True):
        torch.testing.assert_close(without, paid_by_all, rtol=0, atol=1e-4)
