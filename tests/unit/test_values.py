"""Importance values, proposals, features and calibration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats
from rredcot_plugin.testing import text_rollouts
from rredcot_plugin.values import siblings
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import NAMES, boundary_features
from rredcot_plugin.values.labelled_states import LabelledStates, fold_of_groups
from rredcot_plugin.values.logistic import fit_logistic
from rredcot_plugin.values.proposals import FROM_GROUND_TRUTH, FROM_GROUP, NOTHING, build_proposals

NO = float("nan")


def test_support_golden() -> None:
    log_pi = torch.tensor([[[0.5, 0.2], [0.9, 0.05]]]).log()
    utility = torch.tensor([[1.0, 0.5]])
    both = torch.tensor([[True, True]])
    assert torch.allclose(rr.importance_values(log_pi, utility, both), torch.tensor([[0.6, 0.925]]))
    one = torch.tensor([[True, False]])
    assert torch.allclose(rr.importance_values(log_pi, utility, one), torch.tensor([[0.5, 0.9]]))
    none = torch.tensor([[False, False]])
    assert (rr.importance_values(log_pi, utility, none) == 0).all()


def test_self_normalized_golden_and_without_any_probability() -> None:
    log_pi = torch.tensor([[[0.3, 0.1], [0.0, 0.0]]]).log()
    values = rr.importance_values(
        log_pi, torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]]), "self_normalized"
    )
    assert torch.allclose(values, torch.tensor([[0.75, 0.0]]))


def test_own_ratio_without_a_clip_stays_finite_in_values_and_metrics() -> None:
    """An answer that was e^200 times as probable earlier on made ``brier`` and ``explained_variance`` infinite."""
    rollouts = text_rollouts(["a\nb\nc"] * 4, [1.0, 0.0, 1.0, 0.0])
    config = rr.RRedCoTConfig(segmenter="newline", value_estimator="own_ratio")
    segments = config.build_segmenter()(rollouts)
    log_pi = torch.tensor([-1.0, -2.0, -200.0])[None, :, None].expand(4, 3, 1)
    probed = Probed(log_pi, rollouts.outcomes[:, None], torch.ones(4, 1).bool(), segments.num_segments)
    credit = rr.assign_credit(rollouts, config, segments=segments, probed=probed)
    assert float(credit.values.max()) <= 1.0
    assert all(math.isfinite(number) for number in credit.metrics.values())


def test_own_ratio_is_exact_at_the_last_state_and_clips() -> None:
    log_pi = torch.tensor([[[0.1], [0.8], [0.4]], [[0.1], [0.2], [0.9]]]).log()
    utility, valid = torch.tensor([[1.0], [0.5]]), torch.ones(2, 1, dtype=torch.bool)
    last = torch.tensor([2, 1])
    values = rr.importance_values(log_pi, utility, valid, "own_ratio", last=last)
    assert torch.allclose(values, torch.tensor([[0.25, 2.0, 1.0], [0.25, 0.5, 2.25]]))
    clipped = rr.importance_values(log_pi, utility, valid, "own_ratio", last=last, clip=1.0)
    assert clipped.max() <= 1.0
    assert clipped[0, 2] == 1.0


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_support_is_never_above_the_exact_value_and_reaches_it(weights: list[float], proposed: list[bool]) -> None:
    """Non-positive bias for U ≥ 0; none once the proposals hold every rewarded answer (docs/reference/math.md)."""
    pi = torch.tensor(weights) / sum(weights)
    utility = torch.arange(len(weights)).float() / len(weights)
    exact = float((pi * utility).sum())
    valid = torch.tensor([proposed[: len(weights)]])
    value = float(rr.importance_values(pi.log()[None, None], utility[None], valid))
    assert -1e-6 <= value <= exact + 1e-5
    assert value <= float(utility.max()) + 1e-5
    full = rr.importance_values(pi.log()[None, None], utility[None], torch.ones_like(valid))
    assert float(full) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(
    ("log_pi", "kind", "message"),
    [
        (torch.full((1, 1, 1), NO), "support", "NaN or positive"),
        (torch.full((1, 1, 1), 0.5), "support", "NaN or positive"),
        (torch.zeros(1, 1, 2), "support", "utility: expected shape"),
        (torch.zeros(1, 1, 1), "suport", "Did you mean 'support'"),
    ],
)
def test_bad_input_is_named(log_pi: torch.Tensor, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.importance_values(log_pi, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), kind)


def propose(answers, rewards, groups=None, truths=None, **kwargs):
    groups = groups or [0] * len(answers)
    return build_proposals(
        answers, torch.tensor(rewards), groups, truths, proposes=kwargs.pop("proposes", "group"), **kwargs
    )


def test_leave_one_out_leaves_a_rollouts_own_reward_out() -> None:
    found = propose(["4", "4", "5"], [1.0, 1.0, 0.0])
    assert found.answers == [["4"], ["4"], ["4"]]
    alone = propose(["4", "5", "5"], [1.0, 0.0, 0.0], truths=["4", "4", "4"])
    assert alone.answers == [["4"], ["4"], ["4"]]
    assert alone.source == [FROM_GROUND_TRUTH, FROM_GROUP, FROM_GROUP]
    without = propose(["4", "5", "5"], [1.0, 0.0, 0.0], leave_one_out=False)
    assert without.source == [FROM_GROUP] * 3


def test_own_reward_never_changes_a_rollouts_own_proposals() -> None:
    """What a trace is compared with must not depend on how it ended, or the baseline is biased."""
    answers = ["4", "4", "5", None]
    for own in itertools.product([0.0, 1.0], repeat=2):
        found = [propose(answers, [own[0], 1.0, reward, 0.0]) for reward in (0.0, 1.0)]
        assert found[0].answers[2] == found[1].answers[2]
        assert float(found[0].utility[2].sum()) == float(found[1].utility[2].sum())


def test_utility_is_the_mean_reward_of_the_others() -> None:
    found = propose(["4", "4", "4"], [1.0, 0.0, 0.5])
    assert found.utility[:, 0].tolist() == [0.25, 0.75, 0.5]


def test_groups_do_not_mix_and_nan_proposes_nothing() -> None:
    found = propose(["a", "b", "a", "b"], [1.0, 1.0, NO, 1.0], groups=["x", "y", "x", "y"])
    assert found.answers == [[], ["b"], ["a"], ["b"]]
    assert found.source == [NOTHING, FROM_GROUP, FROM_GROUP, FROM_GROUP]


def test_own_group_all_and_the_most_frequent_first() -> None:
    assert propose(["a", None], [0.0, 1.0], proposes="own").answers == [["a"], []]
    everything = propose(["a", "b", "b", "c"], [0.0, 0.0, 0.0, 1.0], proposes="group_all", max_proposals=2)
    assert everything.answers[0] == ["b", "c"]


PROBE = math.log(0.7 / 0.3)


def rollouts_with_signals(B: int = 6, T: int = 12, seed: int = 0) -> rr.Rollouts:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=g) > 0.2
    rewards = torch.zeros(B, T)
    log_probs, entropies = -torch.rand(B, T, generator=g), torch.rand(B, T, generator=g)
    return rr.Rollouts(
        torch.zeros(B, T, dtype=torch.int64), mask, rewards, [0] * B, log_probs=log_probs, entropies=entropies
    )


def test_features_match_a_slow_reference() -> None:
    rollouts = rollouts_with_signals()
    segments = rr.get_segmenter("fixed", tokens=3)(rollouts)
    stats = group_stats(torch.ones(6), [0] * 6, torch.ones(6, dtype=torch.bool))
    unit, everyone = torch.full(segments.exists.shape, 0.7), torch.ones(6, dtype=torch.bool)
    got = boundary_features(rollouts, segments, unit, stats, torch.ones(6), torch.ones(6), everyone)
    for b, i in itertools.product(range(6), range(segments.max_segments)):
        if i >= int(segments.num_segments[b]):
            continue
        lp = [float(x) for x, m in zip(rollouts.log_probs[b], rollouts.response_mask[b], strict=True) if m]
        en = [float(x) for x, m in zip(rollouts.entropies[b], rollouts.response_mask[b], strict=True) if m]
        n = 3 * i
        last = lp[max(0, n - 3) : n]
        expected = {
            "logit_value": PROBE,
            "logit_others_mean": math.log(11.0),  # (5 + 1/2) of 6, against 1/2
            "log_position": torch.log1p(torch.tensor(float(n))).item(),
            "log_segments": torch.log1p(torch.tensor(float(i))).item(),
            "log_prob_sum": sum(lp[:n]),
            "log_prob_mean": sum(lp[:n]) / max(1, n),
            "log_prob_min": min(lp[:n], default=0.0),
            "last_segment_log_prob_sum": sum(last),
            "last_segment_log_prob_min": min(last, default=0.0),
            "entropy_mean": sum(en[:n]) / max(1, n),
            "entropy_max": max(en[:n], default=0.0),
            "logit_value*log_segments": PROBE * math.log1p(i),
            "logit_others_mean*log_segments": math.log(11.0) * math.log1p(i),
        }
        assert set(expected) | set(siblings.NAMES) == set(NAMES)
        for name, value in expected.items():
            assert float(got[b, i, NAMES.index(name)]) == pytest.approx(value, abs=1e-4), (name, b, i)


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
    a = boundary_features(rollouts, segments, unit, stats, torch.ones(6), torch.ones(6), everyone)
    b = boundary_features(
        changed, segments, unit, stats, torch.ones(6), torch.zeros(6).scatter(0, torch.arange(1, 6), 1.0), everyone
    )
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


def test_ground_truth_proposes_nothing_else() -> None:
    found = propose(["a", "b"], [1.0, 0.0], truths=["t", ""], proposes="ground_truth", allowed="group")
    assert found.answers == [["t"], []]
    assert found.source == [1, 2]
    assert propose(["a", "b"], [1.0, 0.0], truths=["t", "t"], proposes="nothing").answers == [[], []]


def test_confidence_is_the_geometric_mean_probability_so_far() -> None:
    mask = torch.tensor([[True, False, True, True, True]])
    log_probs = torch.tensor([[0.5, 0.9, 0.8, 0.1, 0.2]]).log()
    rollouts = rr.Rollouts(torch.zeros(1, 5, dtype=torch.int64), mask, torch.zeros(1, 5), [0], log_probs=log_probs)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    estimate = rr.get_value_estimator("confidence")(None, rollouts=rollouts, segments=segments)
    assert estimate.values[0].tolist() == pytest.approx([1.0, (0.5 * 0.8) ** 0.5])
    assert bool(estimate.known.all())
    options = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 2}, "calibrate": "none"}
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**options, value_estimator="confidence"))
    assert float(credit.values[0, 1]) == pytest.approx(0.4**0.5)
    blind = rr.Rollouts(rollouts.token_ids, mask, rollouts.rewards, [0])
    assert not rr.get_value_estimator("confidence")(None, rollouts=blind, segments=segments).known.any()


@pytest.mark.parametrize("calibrate", ["none", "outcome"])
def test_values_do_not_depend_on_the_rollouts_own_reward(calibrate: str) -> None:
    """What makes V̂ a baseline: a function of the prefix and of other rollouts (docs/reference/math.md)."""
    generator = torch.Generator().manual_seed(3)
    rewards = torch.zeros(12, 9)
    rewards[:, -1] = (torch.rand(12, generator=generator) > 0.5).float()
    log_probs = -torch.rand(12, 9, generator=generator)

    def values(last: float) -> torch.Tensor:
        changed = rewards.clone()
        changed[4, -1] = last
        rollouts = rr.Rollouts(
            torch.zeros(12, 9, dtype=torch.int64),
            torch.ones(12, 9).bool(),
            changed,
            [i % 3 for i in range(12)],
            log_probs=log_probs,
        )
        options = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3}, "calibrate": calibrate}
        return rr.assign_credit(rollouts, rr.RRedCoTConfig(**options)).values

    right, wrong = values(1.0), values(0.0)
    assert torch.allclose(right[4], wrong[4], atol=1e-4)
    assert not torch.allclose(right[7], wrong[7], atol=1e-4), "a sibling's baseline does"
