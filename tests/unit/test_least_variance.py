"""``calibrate: least_variance``: baselines that weigh outcomes by the length of the gradient behind a state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats
from rredcot_plugin.values.calibration import LabelledStates, OutcomeCalibrator
from rredcot_plugin.values.features import NAMES
from rredcot_plugin.values.least_variance import FLOOR, surprise, weighted_others_mean
from tests.unit.test_tabular import EXACT, SeesItself, bias_of_calibrated

OPTIONS = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3}, "calibrate": "least_variance"}
CONFIG = rr.RRedCoTConfig(**OPTIONS)


@pytest.fixture
def rollouts() -> rr.Rollouts:
    """48 traces of 9 tokens in 6 groups; the less probable the first tokens, the less often a trace is rewarded."""
    generator = torch.Generator().manual_seed(3)
    probability = torch.rand(48, 9, generator=generator) * 0.8 + 0.1
    rewards = torch.zeros(48, 9)
    rewards[:, -1] = (torch.rand(48, generator=generator) < probability[:, :3].mean(1) ** 2 * 2).float()
    mask = torch.ones(48, 9).bool()
    mask[5, 6:] = False
    rewards[5, 5], rewards[5, 8] = rewards[5, 8].clone(), 0.0
    ids = torch.zeros(48, 9, dtype=torch.int64)
    return rr.Rollouts(ids, mask, rewards, [i % 6 for i in range(48)], log_probs=probability.log())


@pytest.mark.parametrize("seed", [1, 3])
def test_the_expected_gradient_stays_exact(seed: int) -> None:
    assert bias_of_calibrated(seed, OutcomeCalibrator, calibrate="least_variance") < EXACT


def test_a_fit_that_sees_the_own_outcome_is_found_out() -> None:
    assert bias_of_calibrated(1, SeesItself, calibrate="least_variance") > 0.01


def test_surprise_is_the_squared_distance_of_each_token_from_certainty(rollouts: rr.Rollouts) -> None:
    segments = CONFIG.build_segmenter()(rollouts)
    found = surprise(rollouts, segments)
    assert rollouts.log_probs is not None
    first = (1 - rollouts.log_probs[0, :3].exp()).square().sum()
    assert float(found[0, 0]) == pytest.approx(float(first) + FLOOR)
    assert float(found[5, 2]) == pytest.approx(FLOOR), "masked tokens surprise nobody"


def test_a_fit_without_features_is_the_weighted_mean_of_other_folds() -> None:
    generator = torch.Generator().manual_seed(0)
    outcome = (torch.rand(60, generator=generator) > 0.4).double()
    importance = torch.rand(60, generator=generator).double() * 9
    fold = torch.arange(60) % 3
    states = LabelledStates(torch.zeros(60, 1), outcome, torch.ones(60).double(), importance)
    found = OutcomeCalibrator().calibrate(states, fold)
    assert found is not None
    for k in range(3):
        kept = fold != k
        expected = (importance * outcome)[kept].sum() / importance[kept].sum()
        assert found[fold == k].tolist() == pytest.approx([float(expected)] * 20, abs=1e-4)
    plain = OutcomeCalibrator().calibrate(replace(states, importance=torch.ones(60)), fold)
    scaled = OutcomeCalibrator().calibrate(replace(states, importance=torch.full((60,), 7.0)), fold)
    assert plain is not None and scaled is not None and torch.allclose(plain, scaled, atol=1e-6)


def test_a_checkpoint_without_importance_counts_all_states_alike() -> None:
    calibrator, other = OutcomeCalibrator(), OutcomeCalibrator()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=generator).double(), (torch.arange(30) % 3 == 0).double()
    states = LabelledStates(x, y, torch.ones(30).double(), torch.ones(30).double())
    calibrator.calibrate(states, torch.arange(30) % 5)
    old = {key: value for key, value in calibrator.state_dict().items() if key != "importance"}
    other.load_state_dict(old)
    first, second = (c.calibrate(states, torch.arange(30) % 5) for c in (calibrator, other))
    assert first is not None and second is not None and torch.equal(first, second)


def test_the_weighted_mean_knows_nothing_of_its_own_rollout_nor_of_invalid_ones() -> None:
    outcomes, weight = torch.tensor([1.0, 0, 1, 0, 1, 1]), torch.tensor([0.1, 2, 0.3, 0.4, 1, 0.2])
    groups, valid = [0, 0, 0, 1, 1, 1], torch.ones(6, dtype=torch.bool)

    def mean() -> torch.Tensor:
        return weighted_others_mean(outcomes, weight, group_stats(outcomes, groups, valid), valid)

    first = mean()
    outcomes[1], weight[1] = 1.0, 5.0
    second = mean()
    assert second[1] == pytest.approx(first[1]) and second[0] > first[0] + 0.01
    valid[1] = False
    without = mean()
    outcomes[1], weight[1] = torch.nan, 99.0
    assert torch.equal(mean(), without) and torch.isfinite(without).all()


def test_a_lone_rollout_has_no_others() -> None:
    one = torch.ones(1)
    found = weighted_others_mean(one, one, group_stats(one, [0], one.bool()), one.bool())
    assert found.tolist() == [0.0]


def test_baselines_lie_below_values_where_the_improbable_fails(rollouts: rr.Rollouts) -> None:
    baseline = rr.assign_credit(rollouts, CONFIG)
    value = rr.assign_credit(rollouts, replace(CONFIG, calibrate="outcome"))
    assert float(baseline.values[:, 0].mean()) < float(value.values[:, 0].mean()) - 0.01
    assert (baseline.advantages[~rollouts.response_mask] == 0).all()
    assert torch.allclose(baseline.segment_rewards.sum(1), rollouts.outcomes, atol=1e-5)
    exists = baseline.segments.exists
    expected = rollouts.outcomes[:, None] - baseline.values
    unscaled = rr.assign_credit(rollouts, replace(CONFIG, scale="none"))
    at_starts = unscaled.advantages.gather(1, unscaled.segments.starts.clamp(max=8))
    assert torch.allclose(at_starts[exists], expected[exists], atol=1e-5)


def test_an_unusable_reward_and_equal_rewards_do_no_harm(rollouts: rr.Rollouts) -> None:
    broken = rollouts.rewards.clone()
    broken[3, -1] = torch.nan
    credit = rr.assign_credit(replace(rollouts, rewards=broken), CONFIG)
    assert torch.isfinite(credit.advantages).all() and (credit.advantages[3] == 0).all()
    equal = rr.assign_credit(replace(rollouts, rewards=torch.zeros_like(broken)), CONFIG)
    assert (equal.advantages == 0).all()


@pytest.mark.parametrize(
    "options",
    [{"lam": 0.9}, {"mode": "weighted"}, {"leave_one_out": False}, {"segmenter": "nested", "lam_coarse": 0.5}],
)
def test_what_needs_values_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"calibrate=least_variance fits baselines.* needs .*calibrate=outcome"):
        rr.RRedCoTConfig(calibrate="least_variance", **options)


@pytest.mark.parametrize("estimator", ["monte_carlo", "attention", "reward_model"])
def test_estimators_in_reward_units_are_refused(estimator: str) -> None:
    options = {"path": "x"} if estimator == "reward_model" else {}
    with pytest.raises(ValueError, match=rf"least_variance: value_estimator='{estimator}' is in reward units"):
        rr.RRedCoTConfig.from_mapping(OPTIONS | {"value_estimator": estimator, "value_kwargs": options})


def test_rollouts_without_log_probs_are_refused(rollouts: rr.Rollouts) -> None:
    with pytest.raises(ValueError, match="log_probs: calibrate=least_variance"):
        rr.assign_credit(replace(rollouts, log_probs=None), CONFIG)


def test_the_window_passes_from_step_to_step(rollouts: rr.Rollouts) -> None:
    calibrator = CONFIG.build_calibrator()
    rr.assign_credit(rollouts, CONFIG, calibrator=calibrator)
    (importance,) = calibrator.state_dict()["importance"]
    (features,) = calibrator.state_dict()["features"]
    assert features.shape == (len(importance), len(NAMES)) and float(importance.min()) >= FLOOR
