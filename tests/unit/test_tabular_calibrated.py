"""Calibrated values on policies that can be enumerated: the gradient stays exact."""

from __future__ import annotations

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import NAMES
from rredcot_plugin.values.labelled_states import LabelledStates
from tests.unit.tabular import AllGroups, rollouts_of, weighted_gradient
from tests.unit.tabular_checks import BIASED, EXACT, PLAIN, made_up, probed_by, small_policy


class SeesItself(OutcomeCalibrator):
    """Holds out each state on its own, so that the other states of its trace tell it the outcome."""

    def calibrate(
        self, states: LabelledStates, fold: torch.Tensor, *rest: object, remember: bool = True
    ) -> torch.Tensor | None:
        return super().calibrate(states, torch.arange(len(fold)), remember=remember)

    def baselines(self, states: LabelledStates, fold: torch.Tensor, *rest: object) -> torch.Tensor | None:
        return super().baselines(states, torch.arange(len(fold)))


def past_steps(features: int) -> dict[str, list[torch.Tensor]]:
    """A calibrator's state: one past step of 30 states with arbitrary features and outcomes."""
    generator = torch.Generator().manual_seed(0)
    outcome = (torch.rand(30, generator=generator) > 0.5).double()
    return {
        "features": [torch.randn(30, features, generator=generator, dtype=torch.float64)],
        "outcome": [outcome],
        "weight": [torch.full((30,), 0.5, dtype=torch.float64)],
    }


def bias_of_calibrated(
    seed: int, make_calibrator: type[OutcomeCalibrator], others: list[int] | None = None, **options: object
) -> float:
    """Bias of one group's gradient beside fixed other groups and a fixed window of past steps.

    The other groups are independent of this one, so that the expectation must hold for each of their outcomes
    alone: by default mixed ones, else the traces ``others``.
    """
    policy = small_policy((2, 2, 2), seed)
    groups = AllGroups(policy)
    beside = torch.tensor(others or [int(policy.rewards.argmin()), int(policy.rewards.argmax()), 1, 2, 5, 6])
    config = rr.RRedCoTConfig(**PLAIN | {"calibrate": "outcome", "baseline": "value"} | options)
    advantages = []
    for members in groups.members:
        rows = torch.cat([torch.tensor(members), beside])
        rollouts = rollouts_of(policy, rows, [row // groups.size for row in range(len(rows))])
        calibrator = make_calibrator()
        calibrator.load_state_dict(past_steps(len(NAMES)))
        probed = probed_by(rollouts, config, made_up(2))
        credit = rr.assign_credit(rollouts, config, probed=probed, calibrator=calibrator)
        assert credit.metrics.get("rredcot/fallback/uncalibrated/mean", 0) == 0
        advantages.append(credit.advantages[: groups.size])
    weight = groups.probability.repeat_interleave(groups.size) / groups.size
    found = weighted_gradient(policy, groups.rows, weight, torch.cat(advantages))
    return float((found - policy.exact_gradient).abs().max())


@pytest.mark.parametrize("seed", [1, 3])
def test_calibrated_values_leave_the_gradient_exact(seed: int) -> None:
    assert bias_of_calibrated(seed, OutcomeCalibrator) < EXACT


@pytest.mark.parametrize("worst", [True, False])
def test_the_span_of_rewards_does_not_come_from_the_own_outcome(worst: bool) -> None:
    """All others earn the same, so a span of this batch would tell each value its own outcome."""
    rewards = small_policy((2, 2, 2), 1).rewards
    trace = int(rewards.argmin() if worst else rewards.argmax())
    assert bias_of_calibrated(1, OutcomeCalibrator, others=[trace] * 6) < EXACT


def test_a_fit_that_sees_the_own_outcome_biases_the_gradient() -> None:
    assert bias_of_calibrated(1, SeesItself) > BIASED


def test_calibrated_values_with_the_own_answer_proposed_or_a_smaller_lambda_are_biased() -> None:
    assert bias_of_calibrated(1, OutcomeCalibrator, leave_one_out=False) > BIASED
    assert bias_of_calibrated(1, OutcomeCalibrator, lam=0.0) > BIASED
