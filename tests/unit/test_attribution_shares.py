"""Attribution scores as values, and what is refused."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.probes import UnsupportedModelError
from rredcot_plugin.probes.attention_scores import (
    attention_attribution,
    capture_attention,
)
from rredcot_plugin.probes.gradient_scores import gradient_attribution
from rredcot_plugin.probes.layout import row_spans_of
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.attribution import AttentionEstimator, GradientEstimator, segment_shares
from rredcot_plugin.values.base import scores_read
from tests.unit.attribution_rows import LENGTHS, ROWS, STARTS, padded_inputs
from tests.unit.probe_models import tiny_model


def test_models_that_cannot_be_read_are_named() -> None:
    beside_registry = tiny_model("qwen2")
    beside_registry.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    hybrid = tiny_model("qwen2")
    hybrid.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    for model in (beside_registry, hybrid, nn.Linear(2, 2)):
        for method in (attention_attribution, gradient_attribution):
            with pytest.raises(UnsupportedModelError):
                method(model, ROWS, STARTS)
    elsewhere = tiny_model("qwen2")
    elsewhere.get_input_embeddings = lambda: nn.Embedding(2, 2)
    with pytest.raises(UnsupportedModelError, match="did not run once"):
        gradient_attribution(elsewhere, ROWS, STARTS)


def test_a_capture_without_exactly_one_forward_is_refused() -> None:
    model = tiny_model("qwen2")
    inputs, spans = padded_inputs("right")
    with capture_attention(model, spans, STARTS) as captured:
        with pytest.raises(UnsupportedModelError, match="0 of 3 layers"):
            captured.scores()
        model(**inputs)
        with pytest.raises(UnsupportedModelError, match="ran twice"):
            model(**inputs)
    cache = model(input_ids=ROWS[0][None], use_cache=True).past_key_values
    with capture_attention(model, [(0, 0, 1)], [1]), pytest.raises(UnsupportedModelError, match="from a cache"):
        model(input_ids=torch.tensor([[5]]), past_key_values=cache)


@pytest.mark.parametrize(
    ("starts", "message"),
    [([3], "has 1 entries; expected 2"), ([3, -1], "expected 0 to 17"), ([31, 2], r"answer_starts\[0\] is 31")],
)
def test_wrong_arguments_are_named(starts: list[int], message: str) -> None:
    model = tiny_model("qwen2")
    for method in (attention_attribution, gradient_attribution):
        with pytest.raises(ValueError, match=message):
            method(model, ROWS[:2], starts)
    with pytest.raises(ValueError, match=message), capture_attention(model, row_spans_of(LENGTHS[:2]), starts):
        pass


def test_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        gradient_attribution(tiny_model("qwen2"), ROWS, STARTS, 0.0)


NAN = float("nan")


IDS = torch.tensor([
    [0, 0, 1, -1, 2, 2, 3],
    [0, 1, 1, 1, 2, -1, -1],
    [0, 0, 0, 0, 0, 0, 0],
    [0, 1, 1, 1, 2, 2, 2],
])  # fmt: skip


SEGMENTS = Segments(IDS, torch.tensor([4, 3, 1, 3]))


REWARDS = torch.zeros(4, 7)
REWARDS[0, 6], REWARDS[1, 4], REWARDS[3, 6] = 1.0, 0.25, 1.0


SCORES = torch.tensor([
    [1.0, 1.0, 4.0, NAN, 0.0, 2.0, NAN],
    [0.3, 0.1, 0.1, 0.1, 5.0, 7.0, NAN],
    [1.0] * 7,
    [0.0] * 7,
])  # fmt: skip


def rollouts(scores: Tensor | None = SCORES, name: str = "attention", **changes: object) -> Rollouts:
    fields = {
        "token_ids": torch.ones(4, 7, dtype=torch.int64),
        "response_mask": IDS >= 0,
        "rewards": REWARDS,
        "group_ids": ["a", "a", "a", "b"],
        "token_scores": None if scores is None else {name: scores},
    }
    return Rollouts(**(fields | changes))


def test_shares_by_hand() -> None:
    shares, known = segment_shares(SCORES, SEGMENTS)
    torch.testing.assert_close(shares[0], torch.tensor([0.25, 0.5, 0.25, 0.0]).double())
    torch.testing.assert_close(shares[1], torch.tensor([0.5, 0.5, 0.0, 0.0]).double())
    assert known.tolist() == [True, True, False, False]
    assert (shares[2:] == 0).all()


@pytest.mark.parametrize("bad", [NAN, float("inf"), -0.1])
def test_a_row_with_a_bad_score_is_unknown(bad: float) -> None:
    scores = SCORES.clone()
    scores[0, 2] = bad
    assert segment_shares(scores, SEGMENTS)[1].tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("estimator", "name"), [(AttentionEstimator(), "attention"), (GradientEstimator(), "gradient")]
)
def test_values_hand_the_whole_outcome_to_the_segments(estimator: AttentionEstimator, name: str) -> None:
    assert scores_read(estimator) == {name}
    found = estimator(None, rollouts=rollouts(name=name), segments=SEGMENTS)
    assert found.known.tolist() == [True, True, False, False]
    others = [0.125, 0.5]  # of (0.25, 0) and of (1, 0)
    expected = [
        [others[0] + share * (1.0 - others[0]) for share in accumulate([0, 0.25, 0.5, 0.25])],
        [others[1] + share * (0.25 - others[1]) for share in accumulate([0, 0.5, 0.5])] + [0.0],
    ]
    torch.testing.assert_close(found.values[:2], torch.tensor(expected))
    assert (found.values[2:] == 0).all()


def test_without_scores_nothing_is_known() -> None:
    for batch in (rollouts(None), rollouts(name="gradient")):
        assert not AttentionEstimator()(None, rollouts=batch, segments=SEGMENTS).known.any()


def test_a_reward_that_is_not_finite_counts_for_nobody() -> None:
    rewards = REWARDS.clone()
    rewards[1, 4] = NAN
    found = AttentionEstimator()(None, rollouts=rollouts(rewards=rewards), segments=SEGMENTS)
    assert found.known.tolist() == [True, False, False, False]
    assert float(found.values[0, 0]) == 0.0
    assert torch.isfinite(found.values).all()


def test_credit_is_the_share_of_the_outcome_and_penalties_stay_where_they_are() -> None:
    penalties = torch.where(IDS >= 0, -0.01, 0.0)
    batch = rollouts(rewards=REWARDS + penalties, penalties=penalties)
    config = RRedCoTConfig(prior_from_group=False, scale="none", lam=0.0)
    found = AttentionEstimator()(None, rollouts=batch, segments=SEGMENTS)
    credit = assign_credit(batch, config, segments=SEGMENTS, values=found.values)
    missing = 1.0 - float(found.values[0, 0])
    per_segment = torch.tensor([0.25, 0.5, 0.25, 0.0]) * missing - 0.01 * torch.tensor([2.0, 1.0, 2.0, 1.0])
    expected = torch.where(IDS[0] >= 0, per_segment[IDS[0].clamp(min=0)], 0.0)
    torch.testing.assert_close(credit.advantages[0], expected)
    torch.testing.assert_close(credit.segment_rewards.sum(1)[:2], batch.outcomes[:2])
