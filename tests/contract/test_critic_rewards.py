"""Rows without a finite reward where a critic learns, beside verl's own GAE."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl.credit import gae_of_critic
from rredcot_plugin.options import ESTIMATOR_DEFAULTS

ALGORITHM = SimpleNamespace(gamma=1.0, lam=0.9)


def learned(name: str, rewards: list[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Advantages, returns and the critic's values of rows of six tokens, each a segment."""
    rows = len(rewards)
    values = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))[:rows]
    table = torch.zeros(rows, 6)
    table[:, -1] = torch.tensor(rewards)
    scores = {"critic": values, "reward_model": values.cumsum(1)}
    rollouts = rr.Rollouts(
        torch.zeros(rows, 6, dtype=torch.int64), torch.ones(rows, 6).bool(), table, [0] * rows, token_scores=scores
    )
    tokens = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 1, "max_segments": 100, "answer_markers": []}}
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**{**ESTIMATOR_DEFAULTS[name], **tokens}))
    if name == "red":
        return *gae_of_critic(credit, rollouts, ALGORITHM), values
    return credit.advantages, credit.returns, values


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rredcot_ppo", "red"])
def test_nothing_is_learned_of_a_row_without_a_reward(name: str, bad: float) -> None:
    advantages, returns, values = learned(name, [1.0, 0.0, bad])
    assert float(advantages[2].abs().max()) == 0.0
    torch.testing.assert_close(returns[2], values[2])
    for found, without in zip((advantages, returns), learned(name, [1.0, 0.0]), strict=False):
        torch.testing.assert_close(found[:2], without, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["rredcot_ppo", "red"])
def test_a_step_without_any_reward_goes_on(name: str) -> None:
    advantages, returns, values = learned(name, [float("nan")] * 3)
    assert float(advantages.abs().max()) == 0.0
    torch.testing.assert_close(returns, values)
