"""RED's values: the reward model's score of the prefix before each segment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import rredcot_plugin as rr
from rredcot_plugin.values.base import calibrates, scores_read
from rredcot_plugin.values.reward_model import RewardModelEstimator
from tests.unit.reference import batches

TOKENWISE = {
    "segmenter": "fixed",
    "segmenter_kwargs": {"tokens": 1},
    "value_estimator": "reward_model",
    "prior_from_group": False,
    "scale": "none",
    "lam": 0.0,
}


def scored(rollouts: rr.Rollouts, scores: torch.Tensor) -> rr.Rollouts:
    return rr.Rollouts(
        rollouts.token_ids,
        rollouts.response_mask,
        rollouts.rewards,
        rollouts.group_ids,
        token_scores={"reward_model": scores},
    )


def random_scores(rollouts: rr.Rollouts) -> torch.Tensor:
    return 3 * torch.randn(rollouts.token_ids.shape, generator=torch.Generator().manual_seed(0))


def single(scores: list[float], reward: float, mask: list[int] | None = None) -> rr.Rollouts:
    T = len(scores)
    rewards = torch.zeros(1, T)
    rewards[0, -1] = reward
    return rr.Rollouts(
        torch.zeros(1, T, dtype=torch.int64),
        torch.tensor([mask or [1] * T]).bool(),
        rewards,
        ["u"],
        token_scores={"reward_model": torch.tensor([scores])},
    )


def test_token_rewards_are_differences_of_successive_prefixes() -> None:
    # R(x) = 0.5, R(x, y1) = 0.7, R(x, y1 y2) = 0.2; R(x, y) = 1.0 is the outcome
    rollouts = single([0.5, 0.7, 0.2], 1.0)
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig.from_mapping(TOKENWISE))
    assert torch.allclose(credit.values, torch.tensor([[0.5, 0.7, 0.2]]))
    assert torch.allclose(credit.advantages, torch.tensor([[0.2, -0.5, 0.8]]), atol=1e-6)
    assert float(credit.segment_rewards.sum()) == pytest.approx(1.0)


def test_a_boundary_reads_the_score_before_its_first_token_behind_masked_ones() -> None:
    rollouts = single([0.5, 0.7, 9.0, 0.2, 0.4], 1.0, [1, 1, 0, 1, 1])
    segments = rr.Segments(torch.tensor([[0, 0, -1, 1, 1]]), torch.tensor([2]))
    found = RewardModelEstimator()(None, rollouts=rollouts, segments=segments)
    assert torch.allclose(found.values, torch.tensor([[0.5, 0.2]]))


@settings(deadline=None, max_examples=100)
@given(batches())
def test_the_sum_telescopes_to_the_outcome_whatever_the_scores(rollouts: rr.Rollouts) -> None:
    rollouts = scored(rollouts, random_scores(rollouts))
    for options in (TOKENWISE, TOKENWISE | {"segmenter_kwargs": {"tokens": 3}, "lam": 1.0}):
        credit = rr.assign_credit(rollouts, rr.RRedCoTConfig.from_mapping(options))
        some = credit.segments.num_segments > 0
        assert torch.allclose(credit.segment_rewards.sum(1)[some], rollouts.outcomes[some], atol=1e-4)
        if options is TOKENWISE and credit.segments.max_segments > 1:
            total = rollouts.outcomes - credit.values[:, 0]
            assert torch.allclose(credit.advantages.sum(1)[some], total[some], atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_where_a_score_is_not_finite_the_one_before_it_stands_and_the_mean_of_the_group_without_any(
    bad: float,
) -> None:
    scores = torch.tensor([[0.5, bad, 0.2], [bad, bad, 0.3], [0.1, 0.2, bad], [bad, bad, bad]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    rollouts = rr.Rollouts(
        torch.zeros(4, 3, dtype=torch.int64),
        torch.ones(4, 3).bool(),
        rewards,
        ["u", "u", "v", "v"],
        token_scores={"reward_model": scores},
    )
    config = rr.RRedCoTConfig.from_mapping(TOKENWISE)
    segments = config.build_segmenter()(rollouts)
    found = RewardModelEstimator()(None, rollouts=rollouts, segments=segments)
    assert found.known.tolist() == [True, True, True, False]
    assert found.values[0].tolist() == pytest.approx([0.5, 0.5, 0.2])
    assert found.values[2].tolist() == pytest.approx([0.1, 0.2, 0.2])
    assert found.at_states()[1].tolist() == [False, False, True]  # what comes later is not known earlier
    credit = rr.assign_credit(rollouts, config)
    assert credit.metrics["rredcot/fallback/group_mean/mean"] == 0.25
    assert torch.isfinite(credit.advantages).all()
    # a score where no boundary reads it does no harm
    coarse = rr.Segments(torch.tensor([[0, 0, 1]] * 4), torch.full((4,), 2))
    assert RewardModelEstimator()(None, rollouts=rollouts, segments=coarse).at_states()[0].all()


def test_what_the_glue_reads_of_it() -> None:
    estimator = rr.get_value_estimator("reward_model", path="somewhere", dtype="bfloat16", max_tokens_per_gpu=9)
    assert scores_read(estimator) == {"reward_model"}
    assert not calibrates(estimator)
    assert (estimator.path, estimator.dtype, estimator.max_tokens_per_gpu) == ("somewhere", "bfloat16", 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "path=''"),
        ({"dtype": "int8"}, "dtype='int8': expected one of float32, bfloat16, float16"),
        ({"max_tokens_per_gpu": 0}, "max_tokens_per_gpu=0"),
        ({"trust_remote_code": "yes"}, "trust_remote_code='yes'"),
        ({"paht": "x"}, "paht"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.get_value_estimator("reward_model", **options)
