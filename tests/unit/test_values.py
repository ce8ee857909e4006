"""Importance values, proposals, features and calibration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats
from rredcot_plugin.testing import text_rollouts
from rredcot_plugin.values import siblings
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.features import NAMES, boundary_features
from rredcot_plugin.values.prefix_numbers import prefix_numbers
from rredcot_plugin.values.proposals import FROM_GROUND_TRUTH, FROM_GROUP, NOTHING, build_proposals
from tests.unit.proposed import rollouts_with_signals

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


def test_features_match_a_slow_reference() -> None:
    rollouts = rollouts_with_signals()
    segments = rr.get_segmenter("fixed", tokens=3)(rollouts)
    stats = group_stats(torch.ones(6), [0] * 6, torch.ones(6, dtype=torch.bool))
    unit, everyone = torch.full(segments.exists.shape, 0.7), torch.ones(6, dtype=torch.bool)
    prefixes = prefix_numbers(rollouts, segments)
    got = boundary_features(prefixes, segments, unit, stats, torch.ones(6), torch.ones(6), everyone)
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
