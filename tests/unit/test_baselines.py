"""The family of baselines: names, a user's own, what a baseline may return, and ``Credit.deltas``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.baselines import Evidence
from rredcot_plugin.registry import BASELINES
from tests.unit.reference import batches

FIXED = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 2}, "scale": "none"}


@dataclass(frozen=True)
class Half:
    """Half of what the siblings earn, per segment or per token."""

    share: float = 0.5
    per_token: ClassVar[bool] = False

    def __call__(self, evidence: Evidence) -> torch.Tensor:
        return (self.share * evidence.outcomes.stats.others_mean)[:, None].expand(evidence.segments.exists.shape)


@dataclass(frozen=True)
class HalfPerToken(Half):
    per_token: ClassVar[bool] = True

    def __call__(self, evidence: Evidence) -> torch.Tensor:
        ids = evidence.segments.segment_ids
        return (self.share * evidence.outcomes.stats.others_mean)[:, None].expand(ids.shape)


@pytest.fixture
def rollouts() -> rr.Rollouts:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.zeros(8, 5)
    rewards[:, -1] = torch.rand(8, generator=generator)
    ids = torch.zeros(8, 5, dtype=torch.int64)
    return rr.Rollouts(ids, torch.ones(8, 5).bool(), rewards, [i % 2 for i in range(8)])


def test_the_shipped_baselines_are_listed_and_a_name_is_taken_once() -> None:
    assert {"value", "trace", "least_variance", "token"} <= set(rr.list_baselines())
    with pytest.raises(ValueError, match="baseline 'value' is already registered"):
        rr.register_baseline("value")(Half)
    rr.register_baseline("half_for_test", overwrite=True)(Half)
    try:
        assert rr.RRedCoTConfig(baseline="half_for_test").build_baseline(log_probs=True) == Half()
    finally:
        del BASELINES._factories["half_for_test"]


@pytest.mark.parametrize("name", ["Half", "HalfPerToken"])
@pytest.mark.parametrize("lam", [1.0, 0.3])
def test_a_baseline_of_a_users_file_is_measured_from(rollouts: rr.Rollouts, name: str, lam: float) -> None:
    options = {
        **FIXED,
        "lam": lam,
        "baseline": {"path": __file__, "name": name},
        "baseline_kwargs": {"share": 0.25},
    }
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig.from_mapping(options))
    value = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED, lam=lam, baseline="value"))
    total, outcomes = torch.zeros(2), rollouts.outcomes
    total.index_add_(0, torch.tensor(rollouts.group_ids), outcomes)
    expected = 0.25 * (total[rollouts.group_ids] - outcomes) / 3
    assert credit.baselines is not None
    assert torch.allclose(credit.baselines, expected[:, None].expand(8, 3), atol=1e-6)
    moved = rr.spread_to_tokens(value.values - expected[:, None], value.segments.segment_ids)
    assert torch.allclose(credit.advantages, value.advantages + moved, atol=1e-6)


def test_a_dotted_path_names_one_too() -> None:
    config = rr.RRedCoTConfig.from_mapping({"baseline": "rredcot_plugin.baselines:TraceBaseline"})
    assert type(config.build_baseline(log_probs=True)).__name__ == "TraceBaseline"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "tokn"}, "baseline='tokn': Did you mean 'token'.*Allowed: auto, least_variance"),
        (
            {"baseline": "token", "baseline_kwargs": {"size": 1}},
            "baseline 'token': unknown option 'size'. Known: weight",
        ),
        ({"baseline_kwargs": {"weight": "rest"}}, "baseline_kwargs=.*name the baseline that takes them"),
        ({"baseline": {"path": "/nowhere.py", "name": "X"}}, "baseline file '/nowhere.py': no such file"),
        (
            {"baseline": "token", "mode": "weighted"},
            "baseline=token needs mode='segment_gae', or use baseline=value",
        ),
    ],
)
def test_what_names_no_baseline_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.RRedCoTConfig.from_mapping(options)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(8, 2), r"baselines of Wrong: expected shape \(8, 3\), got \(8, 2\)"),
        (torch.full((8, 3), torch.nan), "baselines of Wrong: expected finite numbers, got 24"),
    ],
)
def test_what_a_baseline_returns_is_checked(rollouts: rr.Rollouts, returned: torch.Tensor, message: str) -> None:
    class Wrong:
        def __call__(self, evidence: Evidence) -> torch.Tensor:
            return returned

    rr.register_baseline("wrong_for_test", overwrite=True)(Wrong)
    try:
        with pytest.raises(ValueError, match=message):
            rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED, baseline="wrong_for_test"))
    finally:
        del BASELINES._factories["wrong_for_test"]


def test_given_values_are_measured_from_unless_a_baseline_is_named(rollouts: rr.Rollouts) -> None:
    rollouts = replace(rollouts, log_probs=-torch.rand(8, 5))
    values = torch.rand(8, 3)
    auto = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED), values=values)
    assert auto.baselines is not None and torch.equal(auto.baselines, values)
    for name in ("trace", "least_variance"):
        named = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED, baseline=name), values=values)
        assert torch.equal(named.values, values)
        assert named.baselines is not None and not torch.allclose(named.baselines, values, atol=1e-3)


def test_deltas_are_the_changes_of_value_after_shapers_and_penalties(rollouts: rr.Rollouts) -> None:
    penalties = -torch.rand(8, 5) / 10
    rollouts = replace(rollouts, rewards=rollouts.rewards + penalties, penalties=penalties)
    values = torch.rand(8, 3)
    config = rr.RRedCoTConfig(**FIXED, shapers=("smoothing",))
    credit = rr.assign_credit(rollouts, config, values=values)
    plain = rr.assign_credit(rollouts, replace(config, shapers=()), values=values)
    kept = torch.stack([penalties[:, :2].sum(1), penalties[:, 2:4].sum(1), penalties[:, 4]], 1)
    score = rollouts.outcomes - penalties.sum(1)
    steps = torch.stack([values[:, 1] - values[:, 0], values[:, 2] - values[:, 1], score - values[:, 2]], 1)
    assert torch.allclose(plain.deltas, steps + kept, atol=1e-6)
    shaped = config.build_shapers()[0](steps, credit.segments, score, None)
    assert torch.allclose(credit.deltas, shaped + kept, atol=1e-6)
    assert torch.allclose(credit.deltas.sum(1), rollouts.outcomes - values[:, 0], atol=1e-5)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    batches(),
    st.sampled_from(["value", "trace", "least_variance", "token"]),
    st.sampled_from(["group_std", "none"]),
)
def test_every_baseline_copes_with_every_batch(rollouts: rr.Rollouts, name: str, scale: str) -> None:
    assert rollouts.log_probs is not None
    rollouts = replace(rollouts, sum_pi_squared=rollouts.log_probs.exp())
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED | {"baseline": name, "scale": scale}))
    assert torch.isfinite(credit.advantages).all() and (credit.advantages[~rollouts.response_mask] == 0).all()
    exists = credit.segments.exists
    assert credit.baselines is not None and (credit.baselines[~exists] == 0).all()
    assert (credit.deltas[~exists] == 0).all()
    assert torch.allclose(credit.deltas[:, 1:], credit.segment_rewards[:, 1:])
    assert torch.allclose(credit.deltas[:, 0] + credit.values[:, 0], credit.segment_rewards[:, 0], atol=1e-6)
