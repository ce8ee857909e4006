"""With a past, neither the own reward nor a later token moves what a trace is measured from."""

from __future__ import annotations

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed

SEGMENTS, LENGTH = 4, 8
PAST = [-1.0, 0.0, 0.5, 1.0] * 4


def batch(outcomes: list[float], seed: int) -> tuple[rr.Rollouts, Probed]:
    """Four groups of four, and the probes of two answers."""
    generator, rows = torch.Generator().manual_seed(seed), len(outcomes)
    rewards = torch.zeros(rows, LENGTH)
    rewards[:, -1] = torch.tensor(outcomes)
    rollouts = rr.Rollouts(
        torch.randint(0, 9, (rows, LENGTH), generator=generator),
        torch.ones(rows, LENGTH, dtype=torch.bool),
        rewards,
        [row // 4 for row in range(rows)],
        log_probs=-torch.rand(rows, LENGTH, generator=generator),
    )
    log_pi = torch.log(torch.rand(rows, SEGMENTS, 2, generator=generator) / 2)
    utility = torch.rand(rows, 2, generator=generator)
    valid = torch.ones(rows, 2, dtype=torch.bool)
    return rollouts, Probed(log_pi, utility, valid, torch.full((rows,), SEGMENTS))


@pytest.mark.parametrize("estimator", ["support", "ground_truth", "self_normalized", "confidence"])
@pytest.mark.parametrize("own", [1.0, -1.0, -5.0])
def test_the_lowest_reward_of_a_batch_is_nobodys_baseline(estimator: str, own: float) -> None:
    """The floor of ``support`` is that of past steps: else values of other groups, and the fit, would know this one."""
    tokens = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 2}}
    config = rr.RRedCoTConfig.from_mapping({"preset": "exact", **tokens, "value_estimator": estimator})

    def baselines(reward: float) -> torch.Tensor:
        calibrator = config.build_calibrator()
        for outcomes, seed in ((PAST, 0), ([reward, 1.0, 0.0, 1.0] + [0.0, 1.0, 0.0, 1.0] * 3, 1)):
            rollouts, probed = batch(outcomes, seed)
            credit = rr.assign_credit(rollouts, config, probed=probed, calibrator=calibrator)
        found: torch.Tensor = credit.baselines[0]
        return found

    torch.testing.assert_close(baselines(own), baselines(0.0), rtol=0, atol=1e-6)
