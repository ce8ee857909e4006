"""Estimators beside the importance weights: references, mixtures, refinement, state scores, the one-number shift."""

from __future__ import annotations

import math

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import Estimate, Probed, estimate, leaves, proposal_limits, scores_read
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.proposals import build_proposals, lowest_of_others
from rredcot_plugin.values.reference import build_references, reference_answers, reference_values

LENGTHS = (3, 2, 0)


def ragged(tokens: int = 2, **kwargs) -> tuple[rr.Rollouts, Segments]:
    """Three rollouts of 3, 2 and 0 segments of ``tokens`` tokens; the first two are one group, rewards 1 and 0."""
    T = tokens * max(LENGTHS)
    columns = torch.arange(T)
    ids = torch.stack([torch.where(columns < n * tokens, columns // tokens, -1) for n in LENGTHS])
    mask = ids >= 0
    rewards = torch.zeros(3, T)
    rewards[0, T - 1] = 1.0
    rollouts = rr.Rollouts(torch.zeros(3, T, dtype=torch.int64), mask, rewards, ["a", "a", "b"], **kwargs)
    return rollouts, Segments(ids, torch.tensor(LENGTHS))


def probed_like(segments: Segments, probability: float, utility: float = 1.0) -> Probed:
    shape = (*segments.exists.shape, 1)
    return Probed(
        torch.full(shape, math.log(probability)),
        torch.full((shape[0], 1), utility),
        segments.exists.any(dim=1, keepdim=True),
        segments.num_segments,
    )


def ask(estimator, probed: dict, rollouts: rr.Rollouts, segments: Segments) -> Estimate:
    return estimate(estimator, probed, clip=None, rollouts=rollouts, segments=segments)


# ---- mixture


def test_mixture_is_the_weighted_mean_of_its_parts() -> None:
    rollouts, segments = ragged()
    mixture = rr.get_value_estimator(
        "mixture", estimators=[{"name": "support", "weight": 3}, {"name": "ground_truth", "weight": 1}]
    )
    probed = {"group": probed_like(segments, 0.8), "ground_truth": probed_like(segments, 0.4)}
    found = ask(mixture, probed, rollouts, segments)
    assert found.values[0].tolist() == pytest.approx([0.7] * 3)
    assert found.known.tolist() == [True, True, False]


def test_a_part_that_knows_nothing_leaves_the_others_alone() -> None:
    rollouts, segments = ragged()
    mixture = rr.get_value_estimator("mixture", estimators=["support", "ground_truth", "critic"])
    found = ask(mixture, {"ground_truth": probed_like(segments, 0.4)}, rollouts, segments)
    assert found.values[1, :2].tolist() == pytest.approx([0.4, 0.4])


def test_what_a_composite_needs_is_what_its_leaves_need() -> None:
    mixture = rr.get_value_estimator(
        "mixture",
        estimators=[
            {"name": "support", "options": {"max_proposals": 3}},
            {"name": "iterative", "options": {"base": "support", "base_kwargs": {"max_proposals": 5}}},
            "own_ratio",
            "monte_carlo",
        ],
    )
    assert [type(leaf).__name__ for leaf in leaves(mixture)][-1] == "MonteCarloEstimator"
    assert proposal_limits(mixture) == {"group": 5, "own": 8}
    assert scores_read(mixture) == {"monte_carlo"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("support", "expected a list"),
        ([], "expected a list"),
        ([{"weight": 1}], "expected a name or"),
        ([{"name": "support", "weight": 0}], "weight of 'support'=0"),
        (["suport"], "Did you mean 'support'"),
    ],
)
def test_bad_mixtures_are_named(entries: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.get_value_estimator("mixture", estimators=entries)


# ---- iterative


def refined_by_hand(values: list[float], outcome: float, alpha: float, sweeps: int) -> list[float]:
    values = list(values)
    for _ in range(sweeps):
        following = outcome
        for i in reversed(range(len(values))):
            following = values[i] = (1 - alpha) * values[i] + alpha * following
    return values


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_iterative_against_the_loop(alpha: float, sweeps: int) -> None:
    scores = torch.tensor([[0.1, 0.0, 0.6, 0.0, 0.3, 0.0], [0.5, 0.0, 0.2, 0.0, 9.0, 9.0], [9.0] * 6])
    rollouts, segments = ragged(token_scores={"critic": scores})
    estimator = rr.get_value_estimator("iterative", base="critic", alpha=alpha, sweeps=sweeps)
    found = ask(estimator, {}, rollouts, segments)
    assert found.values[0].tolist() == pytest.approx(refined_by_hand([0.1, 0.6, 0.3], 1.0, alpha, sweeps))
    assert found.values[1, :2].tolist() == pytest.approx(refined_by_hand([0.5, 0.2], 0.0, alpha, sweeps))
    assert found.known.tolist() == [True, True, False]


def test_iterative_options_are_checked() -> None:
    with pytest.raises(ValueError, match="alpha=2"):
        rr.get_value_estimator("iterative", alpha=2)
    with pytest.raises(ValueError, match="sweeps=0"):
        rr.get_value_estimator("iterative", sweeps=0)


# ---- numbers about states


@pytest.mark.parametrize("name", ["monte_carlo", "critic"])
def test_state_scores_are_read_at_the_first_token_of_a_segment(name: str) -> None:
    scores = torch.full((3, 6), torch.nan)
    scores[0, [0, 2, 4]] = torch.tensor([0.1, 0.2, 0.3])
    scores[1, [0, 2]] = torch.tensor([0.4, torch.nan])
    rollouts, segments = ragged(token_scores={name: scores})
    found = ask(rr.get_value_estimator(name), {}, rollouts, segments)
    assert found.values[0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert found.values[1, :2].tolist() == pytest.approx([0.4, 0.4]), "the number before it stands in"
    assert found.known.tolist() == [True, True, False], "a row without any number is unknown"
    scores[0, 0] = torch.nan  # the prompt itself is not always measured
    config = rr.RRedCoTConfig(value_estimator=name, scale="none", prior_from_group=False)
    credit = rr.assign_credit(rollouts, config, segments=segments)
    assert credit.values[0, 1:].tolist() == pytest.approx([0.2, 0.3]), "no calibration of values in reward units"
    assert torch.isfinite(credit.advantages).all()


def test_without_its_scores_an_estimator_knows_nothing() -> None:
    rollouts, segments = ragged()
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(value_estimator="monte_carlo"), segments=segments)
    assert credit.metrics["rredcot/fallback/group_mean/mean"] == 1.0


def test_an_estimate_of_the_wrong_shape_is_named() -> None:
    class Broken:
        proposes, max_proposals = "nothing", 1

        def __call__(self, probed, **_):
            return Estimate(torch.zeros(2, 2), torch.ones(3).bool())

    rr.register_value_estimator("broken_for_test", overwrite=True)(Broken)
    rollouts, segments = ragged()
    with pytest.raises(ValueError, match=r"values of Broken: expected shape \(3, 3\), got \(2, 2\)"):
        rr.assign_credit(rollouts, rr.RRedCoTConfig(value_estimator="broken_for_test"), segments=segments)


# ---- references


def test_reference_values_by_hand() -> None:
    log_pi = torch.tensor([[[0.2, 0.1], [0.4, 0.3]]]).log()
    probed = Probed(
        log_pi,
        torch.tensor([[1.0, 0.5]]),
        torch.tensor([[True, True]]),
        torch.tensor([2]),
        log_q=torch.tensor([[0.5, 0.25]]).log(),
    )
    expected = [(0.2 / 0.5 * 1.0 + 0.1 / 0.25 * 0.5) / 2, (0.4 / 0.5 * 1.0 + 0.3 / 0.25 * 0.5) / 2]
    assert reference_values(probed)[0].tolist() == pytest.approx(expected)
    assert reference_values(probed, clip=0.5)[0].tolist() == pytest.approx([0.3, 0.375])


def test_references_come_as_texts_mappings_and_lists() -> None:
    given = [
        "so 4",
        {"solution": "so 5", "answer": "5", "utility": 0.5, "log_q": -3.0},
        ["a", "", "b"],
        None,
        {
            "solution": "s",
            "answer": None,
            "utility": None,
            "log_q": None,
        },
    ]
    found = build_references(given, 5, 8)
    assert found.solutions == [["so 4"], ["so 5"], ["a", "b"], [], ["s"]]
    assert found.answers == [[""], ["5"], ["", ""], [], [""]]
    assert found.utility[1, 0] == 0.5 and found.log_q is not None and found.log_q[1, 0] == -3.0
    assert found.utility[4, 0] == 1.0
    assert found.valid.sum(dim=1).tolist() == [1, 1, 2, 0, 1]
    for bad in ([{"answer": "4"}], [[3]], [3.0], [{"solution": "s", "anser": "4"}]):
        with pytest.raises(ValueError, match="references of rollout 0"):
            build_references(bad, 1, 8)
    assert build_references([{"solution": "s", "answer": 0}, float("nan")], 2, 8).answers == [["0"], []]


def test_answers_of_references_are_distinct_proposals() -> None:
    given = [["x = 4", {"solution": "y", "answer": "4", "utility": 0.0}, {"solution": "z", "answer": "7"}]]
    found = reference_answers(build_references(given, 1, 8), lambda text: text.rpartition("= ")[2] or None)
    assert found.answers == [["4", "7"]]
    assert found.utility[0].tolist() == [0.5, 1.0]


# ---- rewards that go below 0, and penalties


def test_what_nobody_proposed_is_worth_the_lowest_reward() -> None:
    rollouts, segments = ragged()
    shifted = rr.Rollouts(
        rollouts.token_ids, rollouts.response_mask, rollouts.rewards * 2 - rollouts.response_mask / 6, ["a"] * 3
    )
    shifted.rewards[1] = torch.where(rollouts.response_mask[1], -0.25, 0.0)  # outcome −1
    found = ask(rr.get_value_estimator("support"), {"group": probed_like(segments, 0.75)}, shifted, segments)
    assert found.values[0].tolist() == pytest.approx([-1 + 0.75 * 2] * 3)
    with pytest.raises(ValueError, match="expected numbers from 0 with kind='support'"):
        rr.importance_values(torch.zeros(1, 1, 1), -torch.ones(1, 1), torch.ones(1, 1).bool())


def test_with_negative_rewards_every_answer_above_the_worst_is_proposed() -> None:
    outcomes = torch.tensor([-1.0, -1.0, 0.0, 0.0, 1.0])
    found = build_proposals(["a", "a", "b", "b", "c"], outcomes, [0] * 5, None, proposes="group")
    assert sorted(found.answers[0]) == ["b", "c"]
    assert lowest_of_others(torch.tensor([math.nan, 2.0])).tolist() == [2.0, 0.0]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_penalties_stay_on_their_segment(lam: float) -> None:
    rollouts, segments = ragged()
    penalties = torch.where(rollouts.response_mask, -0.1, 0.0)
    with_kl = rr.Rollouts(
        rollouts.token_ids,
        rollouts.response_mask,
        rollouts.rewards + penalties,
        rollouts.group_ids,
        penalties=penalties,
    )
    values = torch.tensor([[0.5, 0.7, 0.9], [0.5, 0.3, 0.0], [0.0, 0.0, 0.0]])
    config = rr.RRedCoTConfig(scale="none", lam=lam)
    plain = rr.assign_credit(rollouts, config, segments=segments, values=values)
    both = rr.assign_credit(with_kl, config, segments=segments, values=values)
    assert both.segment_rewards[0].tolist() == pytest.approx((plain.segment_rewards[0] - 0.2).tolist())
    assert both.segment_rewards.sum(dim=1).tolist() == pytest.approx(with_kl.outcomes.tolist(), abs=1e-6)
    last = both.advantages[0, -1] - plain.advantages[0, -1]
    assert float(last) == pytest.approx(-0.2), "the last segment pays for its own tokens only"


def test_penalties_leave_one_segment_as_in_grpo() -> None:
    rollouts, _ = ragged()
    penalties = torch.where(rollouts.response_mask, -0.1, 0.0)
    rewards = rollouts.rewards + penalties
    config = rr.RRedCoTConfig(segmenter="none")
    kept, summed = (
        rr.assign_credit(
            rr.Rollouts(rollouts.token_ids, rollouts.response_mask, rewards, ["a"] * 3, **extra), config
        )
        for extra in ({"penalties": penalties}, {})
    )
    torch.testing.assert_close(kept.advantages, summed.advantages)


# ---- the one-number shift


def test_group_shift_adds_one_number_to_every_logit() -> None:
    torch.manual_seed(0)
    logit = torch.randn(400, dtype=torch.float64)
    outcome = (torch.rand(400, dtype=torch.float64) < torch.sigmoid(logit + 1.5)).double()
    features = torch.stack([logit, torch.randn(400, dtype=torch.float64)], dim=1)
    states = LabelledStates(features, outcome, *torch.ones(2, 400, dtype=torch.float64))
    fold = torch.arange(400) % 4
    fitted = OutcomeCalibrator(shift_only=True).calibrate(states, fold)
    assert fitted is not None
    shift = torch.logit(fitted.double()) - logit
    for k in range(4):
        assert float(shift[fold == k].std()) < 1e-5, "one number a fold"
    assert float(shift.mean()) == pytest.approx(1.5, abs=0.4)
    assert len({round(float(shift[fold == k].mean()), 6) for k in range(4)}) == 4, "each fold's from the others"


def test_group_shift_is_a_value_of_calibrate() -> None:
    config = rr.RRedCoTConfig(calibrate="group_shift")
    assert config.build_calibrator().shift_only
    rollouts, segments = ragged()
    probed = probed_like(segments, 0.3)
    credit = rr.assign_credit(rollouts, config, segments=segments, probed=probed)
    assert torch.isfinite(credit.advantages).all()
