"""``credit_weight``: exact where what is to be expected is known, biased where it is not, nothing at 0."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.ridge import fit_ridge
from tests.unit.reference import text_rollouts
from tests.unit.tabular import AllGroups, TabularPolicy, Trace
from tests.unit.tabular_checks import BIASED, EXACT, PLAIN, small_policy

VALUE = {"baseline": "value"}


class Told(OutcomeCalibrator):
    """Knows what is to be expected of every state after a prompt, row by row."""

    def __init__(self, expected: torch.Tensor) -> None:
        super().__init__()
        self._expected = expected

    def expected_changes(self, states: LabelledStates, *rest: object) -> torch.Tensor:
        return self._expected.expand(len(states.weight))


def wrong_values(policy: TabularPolicy) -> dict[Trace, float]:
    """V̂ of every state that has nothing to do with its value."""
    drawn = torch.rand(len(policy.states), generator=torch.Generator().manual_seed(5))
    return {state: float(value) for state, value in zip(policy.states, drawn, strict=True)}


def right_values(policy: TabularPolicy) -> dict[Trace, float]:
    return {state: policy.value(state) for state in policy.states}


def expected_change(policy: TabularPolicy, values: dict[Trace, float], state: Trace) -> float:
    """E[δ̂ | s] of the segment that starts there, by enumeration."""
    total, mass = 0.0, 0.0
    for trace, probability, reward in zip(policy.traces, policy.probabilities, policy.rewards, strict=True):
        if trace[: len(state)] == state:
            after = values.get(trace[: len(state) + 1], float(reward))
            total, mass = total + float(probability) * (after - values[state]), mass + float(probability)
    return total / mass


def gradient_of(
    policy: TabularPolicy, values: dict[Trace, float], weight: float, *, knows: bool
) -> tuple[torch.Tensor, float]:
    """E[ĝ] and E‖Â‖² over single rollouts, with V̂ given and what is to be expected known, or taken for 0."""
    groups = AllGroups(policy, 1)
    prefixes = [[trace[:i] for i in range(len(trace))] for trace in policy.traces]
    given = torch.tensor([[values[state] for state in states] for states in prefixes])
    known = [expected_change(policy, values, state) for states in prefixes for state in states[1:]]
    config = rr.RRedCoTConfig(**PLAIN | VALUE | {"credit_weight": weight})
    calibrator = Told(torch.tensor(known if knows else [0.0]))
    credit = rr.assign_credit(groups.rollouts, config, values=given, calibrator=calibrator)
    size = float((groups.probability[:, None] * credit.advantages.double() ** 2).sum())
    return groups.expected_gradient(credit.advantages), size


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_gradient_is_exact_for_any_values_where_the_expected_change_is_known(weight: float) -> None:
    policy = small_policy()
    found, _ = gradient_of(policy, wrong_values(policy), weight, knows=True)
    assert float((found - policy.exact_gradient).abs().max()) < EXACT


def test_it_is_biased_where_values_are_wrong_and_nothing_is_expected() -> None:
    policy = small_policy()
    found, _ = gradient_of(policy, wrong_values(policy), 1.0, knows=False)
    assert float((found - policy.exact_gradient).abs().max()) > BIASED


def test_right_values_need_no_regression_and_leave_less_noise() -> None:
    policy = small_policy()
    found, size = gradient_of(policy, right_values(policy), 1.0, knows=False)
    assert float((found - policy.exact_gradient).abs().max()) < EXACT
    assert size < 0.8 * gradient_of(policy, right_values(policy), 0.0, knows=False)[1]


def batch(rewards: list[float]) -> rr.Rollouts:
    """Groups of two traces of two to four lines."""
    texts = ["\n".join(f"{i} so {j}" for j in range(2 + i % 3)) for i in range(len(rewards))]
    log_probs = -torch.rand(len(texts), max(map(len, texts)), generator=torch.Generator().manual_seed(0))
    groups = [str(i // 2) for i in range(len(texts))]
    rollouts = text_rollouts(texts, rewards, group_ids=groups)
    return dataclasses.replace(rollouts, log_probs=log_probs[:, : rollouts.token_ids.shape[1]])


LINES = {"segmenter": "newline", "segmenter_kwargs": {"answer_markers": []}, "value_estimator": "confidence"}
REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_the_advantage_is_the_return_less_the_surprises_of_later_segments() -> None:
    rollouts = batch(REWARDS)
    config = rr.RRedCoTConfig(**LINES, scale="none", calibrate="none", baseline="value", credit_weight=0.25)
    credit = rr.assign_credit(rollouts, config, calibrator=Told(torch.tensor(0.1)))
    starts = credit.segments.starts
    for row, count in enumerate(credit.segments.num_segments.tolist()):
        for k in range(count):
            later = sum(float(credit.deltas[row, i]) - 0.1 for i in range(k + 1, count))
            expected = REWARDS[row] - float(credit.values[row, k]) - 0.25 * later
            assert float(credit.advantages[row, starts[row, k]]) == pytest.approx(expected, abs=1e-6)
    assert not credit.advantages[~rollouts.response_mask].any()
    assert torch.equal(
        credit.deltas, rr.assign_credit(rollouts, config, calibrator=Told(torch.tensor(0.0))).deltas
    )


def test_0_changes_nothing_and_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("a regression that nobody needs")

    monkeypatch.setattr(OutcomeCalibrator, "expected_changes", asked)
    rr.assign_credit(batch(REWARDS), rr.RRedCoTConfig(**LINES))


@pytest.mark.parametrize("calibrate", ["outcome", "none", "trees"])
@pytest.mark.parametrize("rewards", [REWARDS, [1.0] * 8, [float("nan"), 1.0, *REWARDS[2:]], [0.0, 1.0]])
@pytest.mark.parametrize("weight", [0.5, "auto"])
def test_whatever_the_rewards_nothing_is_nan_and_the_first_step_runs(
    calibrate: str, rewards: list[float], weight: float | str
) -> None:
    config = rr.RRedCoTConfig(**LINES, calibrate=calibrate, credit_weight=weight)
    calibrator = config.build_calibrator()
    for _ in range(3):
        credit = rr.assign_credit(batch(rewards), config, calibrator=calibrator)
        assert credit.advantages.isfinite().all()
    if rewards[0] != rewards[0]:
        assert not credit.advantages[0].any()


def test_one_segment_stays_grpo() -> None:
    rollouts = batch(REWARDS)
    plain, weighted = (rr.RRedCoTConfig(segmenter="none", credit_weight=c) for c in (0.0, 1.0))
    assert torch.equal(
        rr.assign_credit(rollouts, plain).advantages, rr.assign_credit(rollouts, weighted).advantages
    )


def drawn(states: int = 60) -> tuple[LabelledStates, torch.Tensor]:
    """States of ten groups whose changes depend on the first feature."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(states, 3, generator=generator).double()
    change = 0.5 * x[:, 0] + 0.1 * torch.randn(states, generator=generator).double() + 1
    one = torch.ones(states).double()
    outcome = torch.where(torch.arange(states) % 2 == 0, 5.0, -5.0).double()
    return LabelledStates(x, outcome, one, one, change), torch.arange(states) % 10


def test_the_regression_finds_what_is_to_be_expected_without_the_own_group() -> None:
    states, fold = drawn()
    found = OutcomeCalibrator().expected_changes(states, fold)
    assert float((found - states.change).std()) < 0.15
    moved = dataclasses.replace(states, change=torch.where(fold == 3, 100.0, states.change))
    again = OutcomeCalibrator().expected_changes(moved, fold)
    assert torch.allclose(found[fold == 3], again[fold == 3])
    assert not torch.allclose(found[fold == 4], again[fold == 4])


def test_no_change_is_expected_that_outcomes_do_not_allow() -> None:
    """A feature that hardly varies over the other groups, and is far off in the own one, tells nothing."""
    states, fold = drawn()
    features = torch.where(fold[:, None] == 3, 1.0, 1e-4) * states.features
    found = OutcomeCalibrator().expected_changes(dataclasses.replace(states, features=features), fold)
    assert float(found.abs().max()) == 10.0, "outcomes are -5 and 5"


def test_past_steps_tell_what_they_know_and_checkpoints_keep_it() -> None:
    (states, fold), calibrator = drawn(), OutcomeCalibrator()
    calibrator.remember(states)
    calibrator.remember(dataclasses.replace(states, change=torch.full_like(states.change, torch.nan)))
    few, own = states.some(fold < 2), fold[fold < 2]
    found = calibrator.expected_changes(few, own)
    assert float((found - few.change).std()) < 0.15
    resumed, older = OutcomeCalibrator(), OutcomeCalibrator()
    resumed.load_state_dict(calibrator.state_dict())
    assert torch.equal(resumed.expected_changes(few, own), found)
    older.load_state_dict({k: v for k, v in calibrator.state_dict().items() if k != "change"})
    assert torch.equal(older.expected_changes(few, own), OutcomeCalibrator().expected_changes(few, own))


def test_ridge_is_the_closed_form() -> None:
    states, _ = drawn(20)
    weights = torch.rand(20, 2, generator=torch.Generator().manual_seed(3)).double()
    weights[:5, 1] = 0.0
    found = fit_ridge(states.features, states.change, weights, 2.0)
    for problem, w in enumerate(weights.T):
        share = w / w.sum()
        mean = share @ states.features
        z = (states.features - mean) / (share @ (states.features - mean) ** 2).sqrt()
        design = torch.nn.functional.pad(z, (0, 1), value=1.0)
        penalty = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0])).double()
        beta = torch.linalg.solve(design.T @ (w[:, None] * design) + penalty, design.T @ (w * states.change))
        expected = design @ beta
        assert torch.allclose(states.features @ found[problem, :-1] + found[problem, -1], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"), [("mode", "weighted"), ("lam", 0.9), ("lam_coarse", 0.5), ("leave_one_out", False)]
)
def test_what_does_not_go_with_it_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{key}={value!r}: credit_weight=0.5 needs {key}=.*credit_weight=0"):
        rr.RRedCoTConfig(**{"baseline": "value", key: value}, credit_weight=0.5)


def test_any_order_of_rows_gives_the_same() -> None:
    rollouts, config = batch(REWARDS), rr.RRedCoTConfig(**LINES, credit_weight=0.5)
    order = list(itertools.chain(range(1, 8), [0]))
    expected = rr.assign_credit(rollouts, config).advantages[order]
    assert torch.allclose(rr.assign_credit(rollouts.take(order), config).advantages, expected, atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_right_values_of_rewards_on_the_way_too_leave_the_gradient_as_it_is(weight: float) -> None:
    """The second of three coin tosses is paid what the first two show; V̂ knows that, and that nothing comes after it."""
    tokens = torch.randint(0, 2, (4096, 3), generator=torch.Generator().manual_seed(0))
    rewards = torch.zeros(4096, 3)
    rewards[:, 1] = (tokens[:, 0] + tokens[:, 1]).float()
    values = torch.stack([torch.ones(4096), tokens[:, 0] + 0.5, torch.zeros(4096)], dim=1)
    groups, log_probs = [row // 4 for row in range(4096)], torch.full((4096, 3), math.log(0.5))
    rollouts = rr.Rollouts(tokens, torch.ones(4096, 3).bool(), rewards, groups, log_probs=log_probs)
    segments = rr.Segments(torch.arange(3).expand(4096, 3).contiguous(), torch.full((4096,), 3))
    config = rr.RRedCoTConfig(scale="none", lam=1.0, credit_weight=weight)
    credit = rr.assign_credit(rollouts, config, segments=segments, values=values)
    along = (credit.advantages[:, :2] * (tokens[:, :2] - 0.5)).mean(0)
    assert along.tolist() == pytest.approx([0.25, 0.25], abs=0.01)


@pytest.mark.parametrize("weight", [0.5, 1.0, "auto"])
def test_wrong_values_of_rewards_on_the_way_leave_the_gradient_as_it_is(weight: float | str) -> None:
    """All is paid on the way, so outcomes never differ; V̂ overrates what starts with a 1, which its features tell."""
    config = rr.RRedCoTConfig(scale="none", lam=1.0, credit_weight=weight)
    calibrator = config.build_calibrator()
    segments = rr.Segments(torch.arange(3).expand(4096, 3).contiguous(), torch.full((4096,), 3))
    for seed in range(3):
        tokens = torch.randint(0, 2, (4096, 3), generator=torch.Generator().manual_seed(seed))
        rewards = torch.zeros(4096, 3)
        rewards[:, 1] = (tokens[:, 0] + tokens[:, 1]).float()
        values = torch.stack([torch.ones(4096), 2.0 * tokens[:, 0], torch.zeros(4096)], dim=1)
        groups, log_probs = [row // 4 for row in range(4096)], math.log(0.5) - 1e-3 * tokens
        rollouts = rr.Rollouts(tokens, torch.ones(4096, 3).bool(), rewards, groups, log_probs=log_probs)
        credit = rr.assign_credit(rollouts, config, segments=segments, values=values, calibrator=calibrator)
    along = (credit.advantages[:, :2] * (tokens[:, :2] - 0.5)).mean(0)
    assert along.tolist() == pytest.approx([0.25, 0.25], abs=0.01)
