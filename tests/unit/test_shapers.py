"""Shapers keep the sum of every trace, and do what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.groups import GroupStats, group_stats
from rredcot_plugin.registry import SHAPERS
from tests.unit.reference import batches, random_values

OPTIONS = [
    ("contribution", {}),
    ("contribution", {"power": 3.0}),
    ("error_penalty", {"beta": 2.0}),
    ("smoothing", {"weight": 0.5}),
    ("smoothing", {"sweeps": 5}),
]


def shape(
    name: str, deltas: list[float], outcome: float = 0.0, mean: float = 0.5, **options: float
) -> list[float]:
    n = len(deltas)
    segments = rr.Segments(torch.arange(n)[None], torch.tensor([n]))
    number = torch.tensor([mean])
    stats = GroupStats(torch.zeros(1, dtype=torch.int64), number, number, number, number)
    shaper = rr.get_shaper(name, **options)
    return shaper(torch.tensor([deltas]), segments, torch.tensor([outcome]), stats)[0].tolist()


def test_contribution_keeps_gains_and_losses_apart() -> None:
    assert shape("contribution", [1.0, 3.0, -2.0]) == pytest.approx([0.4, 3.6, -2.0])
    assert shape("contribution", [1.0, 3.0, -2.0], power=0.0) == pytest.approx([1.0, 3.0, -2.0])
    assert shape("contribution", [1e-30, 0.0]) == pytest.approx([1e-30, 0.0])


def test_error_penalty_blames_losses_of_bad_traces_only() -> None:
    assert shape("error_penalty", [0.5, -1.0], outcome=0.0, beta=1.0) == pytest.approx([1.5, -2.0])
    assert shape("error_penalty", [0.5, -1.0], outcome=1.0, beta=1.0) == pytest.approx([0.5, -1.0])
    assert shape("error_penalty", [0.0, -1.0], outcome=0.0, beta=1.0) == pytest.approx([0.0, -1.0])


def test_smoothing_shares_with_neighbours() -> None:
    assert shape("smoothing", [0.0, 4.0, 0.0, 0.0]) == pytest.approx([1.0, 2.0, 1.0, 0.0])
    assert shape("smoothing", [4.0, 0.0]) == pytest.approx([3.0, 1.0])


@settings(deadline=None)
@given(batches(), st.sampled_from(OPTIONS), st.integers(0, 9))
def test_every_shaper_keeps_the_sum(rollouts: rr.Rollouts, option: tuple, seed: int) -> None:
    name, options = option
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    values = random_values(segments, seed)
    deltas = rr.redistribute(values, rollouts.outcomes, segments.num_segments)
    valid = torch.ones(rollouts.batch_size, dtype=torch.bool)
    stats = group_stats(rollouts.outcomes, rollouts.group_ids, valid)
    shaped = rr.get_shaper(name, **options)(deltas, segments, rollouts.outcomes, stats)
    assert torch.allclose(shaped.sum(1), deltas.sum(1), atol=1e-4)
    assert (shaped[~segments.exists] == 0).all()
    config = rr.RRedCoTConfig(segmenter="fixed", shapers=({"name": name, "options": options}, "contribution"))
    credit = rr.assign_credit(rollouts, config, segments=segments, values=values)
    real = segments.num_segments > 0
    assert torch.allclose(credit.segment_rewards.sum(1)[real], rollouts.outcomes[real], atol=1e-4)
    assert credit.metrics["rredcot/credit/shaping_residual/max"] < 1e-4


def test_a_shaper_that_breaks_the_sum_pays_at_the_answer() -> None:
    SHAPERS.register("clipped_for_test", overwrite=True)(lambda: lambda deltas, *_: deltas.clamp(max=0.1))
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    rollouts = rr.Rollouts(torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 6).bool(), rewards, [0])
    config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 2}, shapers=("clipped_for_test",))
    credit = rr.assign_credit(rollouts, config, values=torch.tensor([[0.0, 0.5, 0.5]]))
    assert credit.segment_rewards[0].tolist() == pytest.approx([0.1, 0.0, 0.9])
    assert credit.metrics["rredcot/credit/shaping_residual/max"] == pytest.approx(0.8)


def test_what_a_shaper_returns_is_checked() -> None:
    rollouts = rr.Rollouts(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4).bool(), torch.zeros(1, 4), [0])
    for broken in (lambda deltas, *_: deltas[:, :1], lambda deltas, *_: deltas * float("nan")):
        SHAPERS.register("broken_for_test", overwrite=True)(lambda broken=broken: broken)
        config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 2}, shapers=("broken_for_test",))
        with pytest.raises(ValueError, match="deltas of shaper"):
            rr.assign_credit(rollouts, config)


@pytest.mark.parametrize(
    ("shapers", "message"),
    [
        ("smoothing", "expected a list"),
        ([{"name": "smoothing", "weight": 0.1}], "expected a name or"),
        ([{"name": "smoothing", "options": {"weight": 0.7}}], "weight=0.7"),
        ([{"name": "smoothing", "options": {"sweeps": 1.5}}], "sweeps=1.5"),
        ([{"name": "error_penalty", "options": {"beta": -1}}], "beta=-1"),
        ([{"name": "contribution", "options": {"power": float("nan")}}], "power=nan"),
    ],
)
def test_bad_options_are_named(shapers: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.RRedCoTConfig.from_mapping({"shapers": shapers})
