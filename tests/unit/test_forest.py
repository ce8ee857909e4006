"""``calibrate: trees``: what trees add to the logistic fit, and what they must not see."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.forest import MOST_STATES, ForestCalibrator, _grow
from rredcot_plugin.values.labelled_states import LabelledStates


def step(seed: int, rollouts: int = 300, low: float = 0.0, high: float = 1.0) -> LabelledStates:
    """Two states a rollout; it succeeds where two features have the same sign, which no sum of theirs tells."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(2 * rollouts, 3, generator=draw, dtype=torch.float64)
    chance = torch.where(features[:, 0] * features[:, 1] > 0, 0.9, 0.1)
    outcome = low + (high - low) * (torch.rand(2 * rollouts, generator=draw) < chance).double()
    return LabelledStates(features, outcome, torch.full_like(outcome, 0.5), torch.ones_like(outcome))


def fold_of(states: LabelledStates) -> torch.Tensor:
    return torch.arange(len(states.outcome)) % 4


def after(calibrator: OutcomeCalibrator, *past: LabelledStates) -> OutcomeCalibrator:
    for states in past:
        calibrator.remember(states)
    return calibrator


def values(calibrator: OutcomeCalibrator, states: LabelledStates) -> torch.Tensor:
    found = calibrator.calibrate(states, fold_of(states))
    assert found is not None
    return found.double()


def in_order(states: LabelledStates, order: torch.Tensor) -> LabelledStates:
    return LabelledStates(*(getattr(states, f.name)[order] for f in dataclasses.fields(states)))


def test_trees_see_what_no_sum_of_features_says() -> None:
    now, past = step(9), [step(0), step(1)]
    truth = torch.where(now.features[:, 0] * now.features[:, 1] > 0, 0.9, 0.1)
    fits = [values(after(kind(), *past), now) for kind in (OutcomeCalibrator, ForestCalibrator)]
    logistic, mixed = (float(torch.corrcoef(torch.stack([found, truth]))[0, 1]) for found in fits)
    assert abs(logistic) < 0.3 < 0.6 < mixed


def test_without_a_past_it_is_the_logistic_fit() -> None:
    same = step(0)
    for past in ([], [dataclasses.replace(same, outcome=torch.ones_like(same.outcome))]):
        calibrator = after(ForestCalibrator(), *past)
        torch.testing.assert_close(
            values(calibrator, step(1)), values(after(OutcomeCalibrator(), *past), step(1)), rtol=0, atol=0
        )
        assert calibrator.notes()["rredcot/value/trees_share/mean"] == 0.0


@pytest.mark.parametrize(("rollouts", "share"), [(128, 0.125), (256, 0.25), (512, 0.5), (900, 0.5)])
def test_the_share_of_trees_grows_with_the_past(rollouts: int, share: float) -> None:
    calibrator = after(ForestCalibrator(), step(0, rollouts))
    values(calibrator, step(1))
    assert calibrator.notes()["rredcot/value/trees_share/mean"] == pytest.approx(share)


def test_outcomes_of_the_batch_do_not_reach_the_trees() -> None:
    """Values of a fold stay as they are whatever its own outcomes; what the others' outcomes change is the logistic fit's."""
    now, past = step(1), step(0)
    other = dataclasses.replace(now, outcome=torch.where(fold_of(now) == 2, 1 - now.outcome, now.outcome))
    first, second = (values(after(ForestCalibrator(), past), states) for states in (now, other))
    own = fold_of(now) == 2
    torch.testing.assert_close(first[own], second[own], rtol=0, atol=0)
    logistic = [values(after(OutcomeCalibrator(), past), states) for states in (now, other)]
    share = 0.5 * 300 / 512
    torch.testing.assert_close(second - first, (1 - share) * (logistic[1] - logistic[0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rollouts", [300, MOST_STATES // 2 + 200])
def test_the_order_of_rows_changes_nothing(rollouts: int) -> None:
    now, past = step(1), step(0, rollouts)
    shuffle, back = (
        torch.randperm(len(x.outcome), generator=torch.Generator().manual_seed(3)) for x in (now, past)
    )
    plain = values(after(ForestCalibrator(), past), now)
    calibrator = after(ForestCalibrator(), in_order(past, back))
    found = calibrator.calibrate(in_order(now, shuffle), fold_of(now)[shuffle])
    assert found is not None
    torch.testing.assert_close(found.double(), plain[shuffle], rtol=0, atol=1e-6)


def test_trees_see_rows_that_differ_in_their_weight_alone_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bootstrap draws rows by number: up to scikit-learn 1.7 their weight then counts."""
    seen: list[list[float]] = []

    def fit(forest: object, rows: object, labels: object, sample_weight: torch.Tensor) -> None:
        seen.append(sample_weight.tolist())

    monkeypatch.setattr("sklearn.ensemble.ExtraTreesRegressor.fit", fit)
    same, weight = torch.ones(4, 2), torch.tensor([0.5, 0.25, 1.0, 0.2])
    for order in (torch.arange(4), torch.tensor([3, 1, 0, 2])):
        _grow(same, same[:, 0], weight[order])
    assert seen[0] == seen[1]


def test_a_resumed_run_goes_on_as_an_uninterrupted_one() -> None:
    calibrator = after(ForestCalibrator(), step(0), step(1))
    resumed = ForestCalibrator()
    resumed.load_state_dict(calibrator.state_dict())
    torch.testing.assert_close(values(resumed, step(2)), values(calibrator, step(2)), rtol=0, atol=0)


def test_values_keep_to_the_range_of_outcomes_whatever_the_features() -> None:
    past, now = step(0, low=-1.0, high=2.0), step(1, low=-1.0, high=2.0)
    wild = now.features.clone()
    wild[0] = 1e30
    found = values(after(ForestCalibrator(), past), dataclasses.replace(now, features=wild))
    assert torch.isfinite(found).all()
    assert -1 <= float(found.min()) < float(found.max()) <= 2


def test_baselines_are_those_of_the_logistic_fit() -> None:
    now, past = step(1), step(0)
    plain, trees = (
        after(kind(), past).baselines(now, fold_of(now)) for kind in (OutcomeCalibrator, ForestCalibrator)
    )
    assert plain is not None and trees is not None
    torch.testing.assert_close(trees, plain, rtol=0, atol=0)


def test_through_the_pipeline_values_move_and_advantages_at_lam_1_do_not() -> None:
    found = {}
    for name in ("outcome", "trees"):
        config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 4}, calibrate=name)
        calibrator = config.build_calibrator()
        for seed in range(5):
            credit = rr.assign_credit(rollouts(seed), config, calibrator=calibrator)
        found[name] = credit
    plain, trees = found["outcome"], found["trees"]
    assert float((plain.values - trees.values).abs().max()) > 1e-3
    torch.testing.assert_close(plain.advantages, trees.advantages, rtol=0, atol=1e-6)
    torch.testing.assert_close(trees.segment_rewards.sum(1), rollouts(4).outcomes, rtol=0, atol=1e-5)
    assert "rredcot/value/trees_share/mean" in trees.metrics
    assert "rredcot/value/trees_share/mean" not in plain.metrics


def rollouts(seed: int, B: int = 64, T: int = 16) -> rr.Rollouts:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 5, (B, T), generator=draw)
    rewards = torch.zeros(B, T)
    rewards[:, -1] = (tokens[:, :4].sum(1) > 8).float()
    return rr.Rollouts(
        tokens, torch.ones(B, T, dtype=torch.bool), rewards, [f"{row // 8}" for row in range(B)],
        log_probs=-torch.rand(B, T, generator=draw), entropies=torch.rand(B, T, generator=draw),
    )  # fmt: skip


def test_without_scikit_learn_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.values.forest.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"calibrate='trees'.*rredcot\[trees\]"):
        rr.RRedCoTConfig(calibrate="trees")
