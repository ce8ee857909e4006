"""``baseline: least_variance``: baselines that weigh outcomes by the length of the gradient behind a state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.baselines.weights import FLOOR, PSEUDO, gradient_norm_proxy, weighted_others_mean
from rredcot_plugin.groups import group_stats
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import NAMES
from rredcot_plugin.values.labelled_states import LabelledStates
from tests.unit.tabular_checks import EXACT
from tests.unit.test_tabular_calibrated import SeesItself, bias_of_calibrated

OPTIONS = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3}, "baseline": "least_variance"}
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
    assert bias_of_calibrated(seed, OutcomeCalibrator, baseline="least_variance") < EXACT


def test_a_fit_that_sees_the_own_outcome_is_found_out() -> None:
    assert bias_of_calibrated(1, SeesItself, baseline="least_variance", calibrate="none") > 0.01


def test_the_proxy_is_the_squared_distance_of_each_token_from_certainty(rollouts: rr.Rollouts) -> None:
    segments = CONFIG.build_segmenter()(rollouts)
    found = gradient_norm_proxy(rollouts, segments)
    assert rollouts.log_probs is not None
    first = (1 - rollouts.log_probs[0, :3].exp()).square().sum()
    assert float(found[0, 0]) == pytest.approx(float(first))
    assert float(found[5, 2]) == 0, "masked tokens surprise nobody"


def test_a_fit_without_features_is_the_weighted_mean_of_other_folds() -> None:
    generator = torch.Generator().manual_seed(0)
    outcome = (torch.rand(60, generator=generator) > 0.4).double()
    importance = torch.rand(60, generator=generator).double() * 9
    fold = torch.arange(60) % 3
    states = LabelledStates(torch.zeros(60, 1), outcome, torch.ones(60).double(), importance)
    found = OutcomeCalibrator().baselines(states, fold)
    assert found is not None
    for k in range(3):
        kept = fold != k
        expected = (importance * outcome)[kept].sum() / importance[kept].sum()
        assert found[fold == k].tolist() == pytest.approx([float(expected)] * 20, abs=1e-4)
    plain = OutcomeCalibrator().baselines(replace(states, importance=torch.ones(60)), fold)
    scaled = OutcomeCalibrator().baselines(replace(states, importance=torch.full((60,), 7.0)), fold)
    assert plain is not None and scaled is not None and torch.allclose(plain, scaled, atol=1e-6)


def test_a_checkpoint_without_importance_counts_all_states_alike() -> None:
    calibrator, other = OutcomeCalibrator(), OutcomeCalibrator()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=generator).double(), (torch.arange(30) % 3 == 0).double()
    states = LabelledStates(x, y, torch.ones(30).double(), torch.ones(30).double())
    calibrator.calibrate(states, torch.arange(30) % 5)
    old = {key: value for key, value in calibrator.state_dict().items() if key != "importance"}
    other.load_state_dict(old)
    first, second = (c.baselines(states, torch.arange(30) % 5) for c in (calibrator, other))
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
    credit, value = (
        rr.assign_credit(rollouts, CONFIG),
        rr.assign_credit(rollouts, replace(CONFIG, baseline="value")),
    )
    assert credit.baselines is not None and value.baselines is not None
    assert float(credit.baselines[:, 0].mean()) < float(value.values[:, 0].mean()) - 0.01
    assert torch.equal(value.baselines, value.values)
    assert (credit.advantages[~rollouts.response_mask] == 0).all()
    exists = credit.segments.exists
    assert (credit.baselines[~exists] == 0).all()
    expected = rollouts.outcomes[:, None] - credit.baselines
    unscaled = rr.assign_credit(rollouts, replace(CONFIG, scale="none"))
    at_starts = unscaled.advantages.gather(1, unscaled.segments.starts.clamp(max=8))
    assert torch.allclose(at_starts[exists], expected[exists], atol=1e-5)


@pytest.mark.parametrize("calibrate", ["outcome", "group_shift", "none"])
def test_values_and_credit_stay_what_they_are(rollouts: rr.Rollouts, calibrate: str) -> None:
    config = replace(CONFIG, calibrate=calibrate)
    credit, value = (
        rr.assign_credit(rollouts, config),
        rr.assign_credit(rollouts, replace(config, baseline="value")),
    )
    assert torch.equal(credit.values, value.values)
    assert torch.equal(credit.segment_rewards, value.segment_rewards)
    assert not torch.allclose(credit.advantages, value.advantages, atol=1e-3)
    assert torch.allclose(credit.segment_rewards.sum(1), rollouts.outcomes, atol=1e-5)


def test_below_lambda_one_the_baseline_changes_no_difference_behind_it(rollouts: rr.Rollouts) -> None:
    """Â + V̂ − b: what follows a segment is weighed as before."""
    config = replace(CONFIG, lam=0.5, scale="none")
    credit, value = (
        rr.assign_credit(rollouts, config),
        rr.assign_credit(rollouts, replace(config, baseline="value")),
    )
    assert credit.baselines is not None
    at = credit.segments.starts.clamp(max=8)
    moved = (credit.advantages - value.advantages).gather(1, at)
    exists = credit.segments.exists
    assert torch.allclose(moved[exists], (credit.values - credit.baselines)[exists], atol=1e-5)


@pytest.mark.parametrize("baseline", ["least_variance", "trace"])
def test_one_segment_a_trace_is_grpo_all_the_same(baseline: str, rollouts: rr.Rollouts) -> None:
    config = rr.RRedCoTConfig(segmenter="none", baseline=baseline)
    expected = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none")).advantages
    assert torch.equal(rr.assign_credit(rollouts, config).advantages, expected)


def test_an_unusable_reward_and_equal_rewards_do_no_harm(rollouts: rr.Rollouts) -> None:
    broken = rollouts.rewards.clone()
    broken[3, -1] = torch.nan
    credit = rr.assign_credit(replace(rollouts, rewards=broken), CONFIG)
    assert torch.isfinite(credit.advantages).all() and (credit.advantages[3] == 0).all()
    equal = rr.assign_credit(replace(rollouts, rewards=torch.zeros_like(broken)), CONFIG)
    assert (equal.advantages == 0).all()


@pytest.mark.parametrize("baseline", ["least_variance", "trace"])
@pytest.mark.parametrize("options", [{"mode": "weighted"}, {"leave_one_out": False}])
def test_what_cannot_be_measured_from_a_baseline_is_refused(baseline: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"baseline={baseline} needs .*, or use baseline=value"):
        rr.RRedCoTConfig(baseline=baseline, **options)


@pytest.mark.parametrize("seed", [1, 3])
def test_the_expected_gradient_stays_exact_with_one_baseline_a_trace(seed: int) -> None:
    assert bias_of_calibrated(seed, OutcomeCalibrator, baseline="trace") < EXACT


@pytest.mark.parametrize(("floor", "joining"), [(FLOOR, PSEUDO), (1e-4, 32.0), (1e-9, 0.0)])
def test_one_baseline_a_trace_is_the_mean_of_the_others_weighted_by_gradient_length(
    rollouts: rr.Rollouts, floor: float, joining: float
) -> None:
    given = {} if floor == FLOOR else {"floor": floor, "pseudo_rollouts": joining}
    credit = rr.assign_credit(rollouts, replace(CONFIG, baseline="trace", baseline_kwargs=given))
    assert rollouts.log_probs is not None and credit.baselines is not None
    square = torch.where(rollouts.response_mask, (1 - rollouts.log_probs.exp()).square(), 0.0).sum(1).double()
    weight = square + floor * credit.segments.num_segments
    outcomes, group = rollouts.outcomes.double(), torch.tensor(rollouts.group_ids)
    for row in (0, 5, 47):
        mates, others = group == group[row], group != group[row]
        mates[row] = False
        own = weight * mates + joining * weight * others / others.sum()  # from elsewhere they join each group
        expected = float((own * outcomes).sum() / own.sum())
        exists = credit.segments.exists[row]
        assert credit.baselines[row][exists].tolist() == pytest.approx([expected] * int(exists.sum()), rel=1e-5)
        assert (credit.baselines[row][~exists] == 0).all()


def test_certain_tokens_weigh_what_the_floor_says(rollouts: rr.Rollouts) -> None:
    """Right tokens that the actor is sure of have next to no gradient: with a low floor failures alone make the baseline."""
    assert rollouts.log_probs is not None
    right = rollouts.outcomes > rollouts.outcomes.mean()
    sure = replace(rollouts, log_probs=torch.where(right[:, None], -1e-4, rollouts.log_probs))
    for name in ("trace", "least_variance"):
        high, low = (
            rr.assign_credit(sure, replace(CONFIG, baseline=name, baseline_kwargs={"floor": floor})).baselines
            for floor in (0.1, 1e-6)
        )
        assert high is not None and low is not None
        assert 0 <= float(low[:, 0].max()) < 0.001 < 0.01 < float(high[:, 0].min()), name


@pytest.mark.parametrize(
    "options", [{"floor": 0.0}, {"floor": "low"}, {"pseudo_rollouts": -1}, {"floor": math.nan}]
)
@pytest.mark.parametrize("name", ["trace", "least_variance"])
def test_options_out_of_range_are_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))}=.*expected a number"):
        rr.RRedCoTConfig.from_mapping({"baseline": name, "baseline_kwargs": options})


def test_one_baseline_a_trace_gives_every_token_of_a_trace_the_same_whatever_the_values(
    rollouts: rr.Rollouts,
) -> None:
    config = replace(CONFIG, baseline="trace")
    credit = rr.assign_credit(rollouts, config)
    spread = torch.where(rollouts.response_mask, credit.advantages - credit.advantages[:, :1], 0.0)
    assert spread.abs().max() < 1e-5 and credit.advantages.abs().max() > 0.1
    other = rr.assign_credit(rollouts, replace(config, value_estimator="confidence", calibrate="none"))
    assert torch.allclose(other.advantages, credit.advantages, atol=1e-5)
    assert credit.baselines is not None  # the benchmark on learning hands them over as values
    handed = rr.assign_credit(rollouts, replace(CONFIG, baseline="auto"), values=credit.baselines)
    assert torch.allclose(handed.advantages, credit.advantages, atol=1e-5)
    broken = rollouts.rewards.clone()
    broken[3, -1] = torch.nan
    harmed = rr.assign_credit(replace(rollouts, rewards=broken), config)
    assert torch.isfinite(harmed.advantages).all() and (harmed.advantages[3] == 0).all()


def test_the_default_takes_them_at_lambda_one(rollouts: rr.Rollouts) -> None:
    plain = {key: value for key, value in OPTIONS.items() if key != "baseline"}
    found = rr.assign_credit(rollouts, rr.RRedCoTConfig(**plain))
    assert torch.equal(found.advantages, rr.assign_credit(rollouts, CONFIG).advantages)


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 0.95},
        {"lam_coarse": 0.9, "segmenter": "nested", "segmenter_kwargs": {}},
        {"mode": "weighted"},
        {"leave_one_out": False},
        {"calibrate": "none"},
        {"calibrate": "group_shift"},
        {"match_grpo": True},
        {"value_estimator": "reward_model"},
        {"baseline": "value"},
    ],
)
def test_elsewhere_the_default_stays_with_values(rollouts: rr.Rollouts, options: dict[str, object]) -> None:
    plain = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3}}
    assert rr.RRedCoTConfig(**plain | options).baseline_for(log_probs=True) == "value"


def test_without_log_probs_and_with_given_values_the_default_stays_with_values(rollouts: rr.Rollouts) -> None:
    config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 3})
    blind = rr.assign_credit(replace(rollouts, log_probs=None), config)
    assert blind.baselines is not None and torch.equal(blind.baselines, blind.values)
    given = rr.assign_credit(rollouts, config, values=torch.rand(48, 3))
    assert given.baselines is not None and torch.equal(given.baselines, given.values)


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(ValueError, match=r"baseline='values'.*'value'.*auto, least_variance, token, trace, value"):
        rr.RRedCoTConfig(baseline="values")


def test_rollouts_without_log_probs_are_refused(rollouts: rr.Rollouts) -> None:
    with pytest.raises(ValueError, match="log_probs: baseline=least_variance"):
        rr.assign_credit(replace(rollouts, log_probs=None), CONFIG)


def test_the_window_passes_from_step_to_step(rollouts: rr.Rollouts) -> None:
    calibrator = CONFIG.build_calibrator()
    rr.assign_credit(rollouts, CONFIG, calibrator=calibrator)
    (importance,) = calibrator.state_dict()["importance"]
    (features,) = calibrator.state_dict()["features"]
    assert features.shape == (len(importance), len(NAMES)) and float(importance.min()) >= FLOOR
