"""``credit_weight: auto``: the weight of least squared error, by past steps alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.fit import WEIGHT
from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.luck import DOUBT, foreseen_luck, least_error_weight
from tests.unit.test_later_segments import LINES, batch

STEPS = [
    [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0],
    [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0],
]
AUTO = rr.RRedCoTConfig(**LINES, scale="none", baseline="value", credit_weight="auto")


def past_states(foreseeable: float, states: int = 4000) -> LabelledStates:
    """Luck of variance 1, ``foreseeable`` of it told by the only feature; as much again is open that luck does not show."""
    generator = torch.Generator().manual_seed(0)
    feature, rest, noise = torch.randn(3, states, generator=generator).double()
    told = foreseeable**0.5 * feature
    luck = told + (1 - foreseeable) ** 0.5 * rest
    one = torch.ones(states).double()
    return LabelledStates(
        feature[:, None], one, one, one, rest=luck - told + noise, luck=luck, foreseen=told + 0.1 * noise
    )


@pytest.mark.parametrize("rollouts", [1, 16, 1024])
@pytest.mark.parametrize("foreseeable", [0.0, 0.1, 0.5])
def test_it_minimises_the_squared_error_of_a_mean_over_the_rollouts(foreseeable: float, rollouts: int) -> None:
    states = past_states(foreseeable)
    found = least_error_weight(states, rollouts)
    product = states.foreseen * states.luck
    bias = max(0.0, float(product.mean() + DOUBT * product.std(correction=0) / len(product) ** 0.5))
    weights = torch.linspace(0, 1, 1001).double()
    variance = (states.rest**2).mean() - 2 * weights * (states.rest * states.luck).mean()
    variance = variance + weights**2 * (states.luck**2).mean()
    expected = weights[(variance / rollouts + weights**2 * bias).argmin()]
    assert found == pytest.approx(float(expected), abs=1e-3)
    assert bias == pytest.approx(foreseeable, abs=0.05)


def test_what_can_be_foreseen_and_more_rollouts_make_it_smaller() -> None:
    by_bias = [least_error_weight(past_states(share), 16) for share in (0.0, 0.1, 0.5)]
    by_size = [least_error_weight(past_states(0.1), rollouts) for rollouts in (1, 16, 1024)]
    assert by_bias[0] > 0.8
    assert by_bias[2] < 0.1
    assert by_bias == sorted(by_bias, reverse=True)
    assert by_size == sorted(by_size, reverse=True)


def test_states_of_a_rollout_count_as_one() -> None:
    """The same numbers seen four times tell no more."""
    states = past_states(0.0)
    assert float((states.foreseen * states.luck).mean()) < 0.01, "the doubt decides"
    again = LabelledStates.joined([states] * 4)
    shared = dataclasses.replace(again, weight=again.weight / 4)
    assert least_error_weight(shared, 1024) == pytest.approx(least_error_weight(states, 1024), abs=1e-9)
    assert least_error_weight(again, 1024) > least_error_weight(states, 1024)


def test_without_evidence_it_is_0() -> None:
    states = past_states(0.0)
    unknown = torch.full_like(states.luck, torch.nan)
    for nothing in (
        states.some(torch.zeros(len(states.luck)).bool()),
        dataclasses.replace(states, foreseen=unknown),
        dataclasses.replace(states, luck=unknown),
        dataclasses.replace(states, luck=torch.zeros_like(unknown), foreseen=torch.zeros_like(unknown)),
        dataclasses.replace(states, rest=-states.rest),
    ):
        assert least_error_weight(nothing, 16) == 0.0


def test_luck_is_foreseen_by_the_past_and_within_the_span() -> None:
    states = past_states(0.5)
    near, far = torch.tensor([[1.0]]).double(), torch.tensor([[100.0]]).double()
    assert float(foreseen_luck(states, near, 1.0, 1.0)) == pytest.approx(0.5**0.5, abs=0.05)
    assert float(foreseen_luck(states, far, 1.0, 1.0)) == 1.0
    none = states.some(torch.zeros(len(states.luck)).bool())
    assert foreseen_luck(none, near, 1.0, 1.0).isnan().all()


def weights_of(steps: list[list[float]], calibrator: OutcomeCalibrator) -> list[float]:
    return [rr.assign_credit(batch(rewards), AUTO, calibrator=calibrator).metrics[WEIGHT] for rewards in steps]


def test_the_first_two_steps_take_nothing_out_and_later_ones_what_the_past_advises() -> None:
    found = weights_of(STEPS * 3, AUTO.build_calibrator())
    assert found[:2] == [0.0, 0.0]
    assert max(found) > 0.0
    assert all(0.0 <= weight <= 1.0 for weight in found)


def test_the_step_at_hand_has_no_say() -> None:
    """A weight that knew its own outcomes would bias the gradient."""
    first = weights_of([*STEPS * 3, STEPS[0]], AUTO.build_calibrator())[-1]
    other = weights_of([*STEPS * 3, [1.0 - reward for reward in STEPS[0]]], AUTO.build_calibrator())[-1]
    assert first == other > 0.0


def test_the_weight_is_what_is_taken_out() -> None:
    calibrator, same = AUTO.build_calibrator(), AUTO.build_calibrator()
    weights_of(STEPS * 3, calibrator)
    weights_of(STEPS * 3, same)
    credit = rr.assign_credit(batch(STEPS[0]), AUTO, calibrator=calibrator)
    fixed = dataclasses.replace(AUTO, credit_weight=credit.metrics[WEIGHT])
    expected = rr.assign_credit(batch(STEPS[0]), fixed, calibrator=same)
    assert WEIGHT not in expected.metrics
    assert torch.equal(credit.advantages, expected.advantages)


def test_a_resumed_run_goes_on_as_it_would_have() -> None:
    calibrator, resumed, older = (AUTO.build_calibrator() for _ in range(3))
    weights_of(STEPS * 3, calibrator)
    state = calibrator.state_dict()
    resumed.load_state_dict(state)
    older.load_state_dict({key: value for key, value in state.items() if key not in ("rest", "luck", "foreseen")})
    assert weights_of(STEPS[:1], resumed) == weights_of(STEPS[:1], calibrator)
    assert weights_of(STEPS, older)[:2] == [0.0, 0.0], "a checkpoint of a version without it"


def test_other_texts_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"credit_weight='aut': expected a number from 0 to 1, or 'auto'"):
        rr.RRedCoTConfig(credit_weight="aut")
    with pytest.raises(ValueError, match=r"lam=0.9: credit_weight=auto needs lam=1.0, or use credit_weight=0"):
        rr.RRedCoTConfig(credit_weight="auto", lam=0.9)
