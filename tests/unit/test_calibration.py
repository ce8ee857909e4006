"""Features of states, and the fits of calibration."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import boundary_features
from rredcot_plugin.values.labelled_states import EXACT_GROUPS, LabelledStates, fold_of_groups, sample_of_groups
from rredcot_plugin.values.logistic import fit_logistic
from rredcot_plugin.values.prefix_numbers import prefix_numbers
from tests.unit.proposed import rollouts_with_signals


def test_features_read_the_prefix_only() -> None:
    """Changing what follows a boundary changes no feature of it."""
    rollouts = rollouts_with_signals()
    segments = rr.get_segmenter("fixed", tokens=3)(rollouts)
    stats = group_stats(torch.ones(6), [0] * 6, torch.ones(6, dtype=torch.bool))
    unit = torch.full(segments.exists.shape, 0.5)
    cut = segments.starts[0, 2]
    later = torch.arange(12) >= cut
    changed = rr.Rollouts(
        torch.where(later & (torch.arange(6) == 0)[:, None], 7, rollouts.token_ids),
        rollouts.response_mask,
        rollouts.rewards,
        rollouts.group_ids,
        log_probs=torch.where(later, -9.0, rollouts.log_probs),
        entropies=torch.where(later, 9.0, rollouts.entropies),
    )
    everyone = torch.ones(6, dtype=torch.bool)
    ones, others_alone = torch.ones(6), torch.zeros(6).scatter(0, torch.arange(1, 6), 1.0)
    a = boundary_features(prefix_numbers(rollouts, segments), segments, unit, stats, ones, ones, everyone)
    b = boundary_features(prefix_numbers(changed, segments), segments, unit, stats, ones, others_alone, everyone)
    assert torch.equal(a[0, :3], b[0, :3])
    assert not torch.equal(a[0, 3], b[0, 3])


def test_logistic_fit_equals_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    g = torch.Generator().manual_seed(1)
    x = torch.randn(300, 4, generator=g, dtype=torch.float64)
    y = (torch.rand(300, generator=g) < torch.sigmoid(2 * x[:, 0] - x[:, 1])).double()
    weights = torch.stack([torch.ones(300), (torch.arange(300) % 3 != 0).double()], dim=1)
    ours = fit_logistic(x, y, weights, l2=1.0)
    for k in range(2):
        w = weights[:, k]
        center = (x * w[:, None]).sum(0) / w.sum()
        scale = ((x - center) ** 2 * w[:, None]).sum(0).div(w.sum()).sqrt()
        theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit((x - center) / scale, y, sample_weight=w)
        slope = torch.tensor(theirs.coef_[0]) / scale
        assert torch.allclose(ours[k, :-1], slope, atol=1e-4)
        assert float(ours[k, -1]) == pytest.approx(float(theirs.intercept_[0] - (slope * center).sum()), abs=1e-4)


def _hard_fits() -> dict[str, tuple[torch.Tensor, torch.Tensor, float, torch.Tensor | None]]:
    """Features, outcomes, l2 and start of fits that a plain Newton step fails on, or has nothing to learn from."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(80, 3, generator=g, dtype=torch.float64)
    noisy = (torch.rand(80, generator=g) < torch.sigmoid(x[:, 0])).double()
    far = torch.tensor([[40.0, -40.0, 40.0, 60.0]], dtype=torch.float64)
    rare = torch.zeros_like(x)
    rare[0] = 1e6
    return {
        "separable": (x, (x[:, 0] > 0).double(), 1.0, None),
        "separable, no ridge": (x, (x[:, 0] > 0).double(), 0.0, None),
        "one outcome": (x, torch.ones_like(noisy), 1.0, None),
        "far start": (x, noisy, 1.0, far),
        "equal columns, no ridge": (x[:, :1].expand(80, 3), noisy, 0.0, None),
        "constant columns": (torch.ones_like(x), noisy, 1.0, None),
        "large offsets": (x + torch.tensor([1e5, -1e5, 0.0], dtype=torch.float64), noisy, 1.0, None),
        "one large row": (rare, noisy, 1.0, None),
        "no features": (x[:, :0], noisy, 1.0, None),
        "no rows": (x[:0], noisy[:0], 1.0, None),
    }


@pytest.mark.parametrize("case", _hard_fits())
def test_hard_fits_are_finite_and_no_worse_than_a_quasi_newton_method(case: str) -> None:
    x, y, l2, start = _hard_fits()[case]
    weights = torch.stack([torch.ones(len(x)), (torch.arange(len(x)) % 2).double(), torch.zeros(len(x))], dim=1)
    found = fit_logistic(x, y, weights.double(), l2, start=start)
    assert torch.isfinite(found).all()

    for k in (0, 1):
        center, scale = _center_and_scale(x[weights[:, k] > 0])
        z = (x - center) / scale

        def loss(beta: torch.Tensor, z: torch.Tensor = z, own: torch.Tensor = weights[:, k]) -> torch.Tensor:
            logits = z @ beta[:-1] + beta[-1]
            losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, own, reduction="sum")
            return losses + 0.5 * l2 * (beta[:-1] ** 2).sum()

        ours = torch.cat([found[k, :-1] * scale, found[k, -1:] + (found[k, :-1] * center).sum()])
        assert float(loss(ours)) <= float(loss(_by_lbfgs(loss, x.shape[1] + 1))) + 1e-5


def _center_and_scale(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not len(x):
        return torch.zeros(2, x.shape[1], dtype=x.dtype).unbind()
    deviation = (x - x.mean(0)).square().mean(0).sqrt()
    return x.mean(0), torch.where(deviation > 1e-6, deviation, 1.0)


def _by_lbfgs(loss: Callable[[torch.Tensor], torch.Tensor], size: int) -> torch.Tensor:
    found = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([found], max_iter=200, tolerance_grad=1e-7, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        value = loss(found)
        value.backward()
        return value

    solver.step(closure)
    return found.detach()


def test_half_a_pair_of_surrogates_names_a_group_too() -> None:
    ids = [f"{i}\ud83d" for i in range(EXACT_GROUPS + 1)]
    assert len(fold_of_groups(ids)) == len(ids) == int(sample_of_groups(ids, 1.0, len(ids)).sum())
    assert sample_of_groups(ids, 1.0, 4).any()


def test_a_groups_values_do_not_depend_on_its_own_outcomes() -> None:
    """Cross-fitting: flipping the labels of a group leaves its own predictions as they were."""
    g = torch.Generator().manual_seed(2)
    x, y = torch.randn(60, 3, generator=g), (torch.rand(60, generator=g) > 0.5).double()
    fold = torch.arange(60) % 4
    weight = torch.ones(60, dtype=torch.float64)
    flipped = torch.where(fold == 1, 1 - y, y)
    a = OutcomeCalibrator().calibrate(LabelledStates(x, y, weight, torch.ones_like(weight)), fold)
    b = OutcomeCalibrator().calibrate(LabelledStates(x, flipped, weight, torch.ones_like(weight)), fold)
    assert torch.allclose(a[fold == 1], b[fold == 1], atol=1e-6)
    assert not torch.allclose(a[fold == 0], b[fold == 0], atol=1e-3)


def test_calibrator_without_two_outcomes_and_its_state() -> None:
    x, weight = torch.randn(10, 2), torch.ones(10, dtype=torch.float64)
    fold = torch.arange(10) % 2
    calibrator = OutcomeCalibrator(window=2)
    assert (
        calibrator.calibrate(LabelledStates(x, torch.ones(10, dtype=torch.float64), weight, weight), fold) is None
    )
    mixed = LabelledStates(x, (torch.arange(10) % 3 == 0).double(), weight, weight)
    for _ in range(3):
        resumed = OutcomeCalibrator(window=2)
        resumed.load_state_dict(calibrator.state_dict())
        assert torch.equal(calibrator.baselines(mixed, fold), resumed.baselines(mixed, fold))
        assert torch.equal(calibrator.calibrate(mixed, fold), resumed.calibrate(mixed, fold))


def test_where_the_last_fit_ended_is_a_start_and_no_more() -> None:
    """Whatever the earlier steps said, the same window gives the same values, to the fit's tolerance; also where the last
    solution is of another number of features."""
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(80, 3, generator=g).double(), (torch.rand(80, generator=g) > 0.6).double()
    weight, fold = torch.ones(80, dtype=torch.float64), torch.arange(80) % 4
    states = LabelledStates(x, y, weight, weight)
    fresh = OutcomeCalibrator(window=0).calibrate(states, fold)
    separable, wider = (x[:, 0] > 0).double(), torch.randn(80, 5, generator=g).double()
    for before in (
        LabelledStates(x, separable, weight, weight),
        LabelledStates(1e4 * x, 1 - separable, weight, weight),
        LabelledStates(wider, y, weight, weight),
    ):
        calibrator = OutcomeCalibrator(window=0)
        for _ in range(3):
            assert calibrator.calibrate(before, fold) is not None
        assert torch.allclose(calibrator.calibrate(states, fold), fresh, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 3])
def test_the_fit_sees_as_many_past_steps_as_it_is_told(window: int) -> None:
    """Steps before the window leave no trace, those within it do; a checkpoint of a longer window is cut to it."""
    fold, weight = torch.arange(40) % 2, torch.ones(40, dtype=torch.float64)

    def step(seed: int) -> LabelledStates:
        g = torch.Generator().manual_seed(seed)
        outcome = (torch.rand(40, generator=g) < 0.5).double()
        return LabelledStates(torch.randn(40, 2, generator=g).double(), outcome, weight, weight)

    def last(past: list[int], window_before: int = window) -> torch.Tensor:
        before, calibrator = (
            rr.RRedCoTConfig(calibrate_window=w).build_calibrator() for w in (window_before, window)
        )
        for seed in past:
            before.calibrate(step(seed), fold)
        calibrator.load_state_dict(before.state_dict())
        found = calibrator.calibrate(step(5), fold)
        assert found is not None
        return found

    past = [1, 2, 3, 4]
    # the fit starts where the last one ended, so what came before the window moves it within its tolerance
    assert torch.allclose(last(past), last([7] * (4 - window) + past[4 - window :]), atol=1e-6)
    assert torch.allclose(last(past), last(past, window_before=9), atol=1e-6)
    if window:
        assert not torch.allclose(last(past), last([7] * (5 - window) + past[5 - window :]), atol=1e-3)


@pytest.mark.parametrize(("rollouts", "steps"), [(8, 64), (60, 9), (128, 4), (200, 4)])
def test_the_window_holds_four_steps_or_512_rollouts(rollouts: int, steps: int) -> None:
    """Whatever number of states a rollout has; and a checkpoint is cut to it."""
    calibrator = rr.RRedCoTConfig().build_calibrator()
    outcome = (torch.arange(2 * rollouts) % 4 < 2).double()
    weight = torch.full((2 * rollouts,), 0.5, dtype=torch.float64)
    states = LabelledStates(torch.zeros(2 * rollouts, 2).double(), outcome, weight, weight)
    for _ in range(steps + 3):
        calibrator.remember(states)
    assert len(calibrator.state_dict()["outcome"]) == steps
    longer = rr.RRedCoTConfig(calibrate_window=steps + 2).build_calibrator()
    for _ in range(steps + 2):
        longer.remember(states)
    calibrator.load_state_dict(longer.state_dict())
    assert len(calibrator.state_dict()["outcome"]) == steps


def test_past_steps_with_other_features_are_forgotten() -> None:
    """A checkpoint of a version with fewer features must not stop a resumed run."""
    fold, outcome = torch.arange(10) % 2, (torch.arange(10) % 3 == 0).double()
    calibrator, fresh = OutcomeCalibrator(window=2), OutcomeCalibrator(window=2)
    calibrator.calibrate(LabelledStates(torch.randn(10, 2), outcome, *torch.ones(2, 10)), fold)
    wider = LabelledStates(torch.randn(10, 3), outcome, *torch.ones(2, 10))
    assert torch.equal(calibrator.calibrate(wider, fold), fresh.calibrate(wider, fold))


@pytest.mark.parametrize("damage", [{"features": None}, {"outcome": 1.0}, {"weight": {}}])
def test_a_damaged_state_is_named(damage: dict) -> None:
    calibrator, name = OutcomeCalibrator(), next(iter(damage))
    calibrator.remember(LabelledStates(torch.randn(10, 2), *torch.ones(3, 10)))
    with pytest.raises(ValueError, match=f"damaged: expected a list .* '{name}'"):
        calibrator.load_state_dict({**calibrator.state_dict(), **damage})
    with pytest.raises(ValueError, match=r"damaged: expected a list .* 'features'"):
        calibrator.load_state_dict({})


def test_folds_ignore_the_order_of_the_rows() -> None:
    few, many = ["b", "a", "b"], [f"g{i}" for i in range(40)]
    assert fold_of_groups(few).tolist() == fold_of_groups(few[::-1]).tolist()[::-1]
    assert fold_of_groups(many).tolist() == fold_of_groups(many[::-1]).tolist()[::-1]
    assert len(set(fold_of_groups(many).tolist())) <= 8


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_calibrated_credit_is_finite_and_within_the_rewards(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rollouts = rollouts_with_signals(8, 12, seed)
    rewards = torch.zeros(8, 12)
    rewards[rollouts.response_mask] = 0.0
    first = rollouts.response_mask.float().argmax(1)
    rewards[torch.arange(8), first] = (torch.rand(8, generator=g) > 0.5).float()
    rollouts = rr.Rollouts(
        rollouts.token_ids, rollouts.response_mask, rewards, [0, 0, 0, 0, 1, 1, 1, 2], log_probs=rollouts.log_probs
    )
    config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 3})
    segments = config.build_segmenter()(rollouts)
    log_pi = -5 * torch.rand(8, segments.max_segments, 2, generator=g)
    probed = Probed(log_pi, torch.ones(8, 2), torch.rand(8, 2, generator=g) > 0.3, segments.num_segments)
    credit = rr.assign_credit(rollouts, config, segments=segments, probed=probed)
    assert torch.isfinite(credit.advantages).all()
    assert credit.values.min() >= 0
    assert credit.values.max() <= 1
