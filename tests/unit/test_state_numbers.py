"""Numbers of states stand in for the tokens and signals that they were made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.baselines import base
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.state_numbers import StateNumbers, state_numbers
from rredcot_plugin.values import fit
from tests.unit.test_group_work import TABLE, bare_rows

NEWLINES = {"segmenter": "newline"}


def with_texts(**fields: Any) -> rr.Rollouts:
    rollouts = bare_rows().read(TABLE).rollouts
    entropies = torch.rand(rollouts.rewards.shape, generator=torch.Generator().manual_seed(1))
    return dataclasses.replace(rollouts, **{"entropies": entropies, **fields})


def without_tokens(rollouts: rr.Rollouts, **fields: Any) -> rr.Rollouts:
    return rr.Rollouts(None, rollouts.response_mask, rollouts.rewards, rollouts.group_ids, **fields)


@pytest.mark.parametrize("options", [{}, {"baseline": "trace"}, {"baseline": "value", "lam": 0.9}], ids=str)
def test_credit_of_rollouts_without_tokens_is_the_same(options: dict[str, Any]) -> None:
    rollouts, config = with_texts(), rr.RRedCoTConfig.from_mapping({**NEWLINES, **options})
    whole = assign_credit(rollouts, config)
    states = state_numbers(rollouts, whole.segments)
    bare = assign_credit(without_tokens(rollouts), config, segments=whole.segments, states=states)
    assert torch.equal(whole.advantages, bare.advantages) and torch.equal(whole.values, bare.values)
    assert bare.metrics.items() <= whole.metrics.items()


def test_numbers_that_are_given_are_taken() -> None:
    rollouts, config = with_texts(), rr.RRedCoTConfig.from_mapping({**NEWLINES, "baseline": "trace"})
    whole = assign_credit(rollouts, config)
    weights = torch.arange(1.0, 21.0)[:, None].expand(whole.segments.exists.shape)
    other = assign_credit(rollouts, config, states=StateNumbers(gradient_norm_proxy=weights))
    assert torch.equal(other.values, whole.values), "what is not given is computed from the tokens"
    assert not torch.equal(other.advantages, whole.advantages)


def test_of_a_row_alone() -> None:
    rollouts = with_texts()
    segments = rr.get_segmenter("newline")(rollouts)
    row = 7
    own = rr.Segments(segments.segment_ids[[row]], segments.num_segments[[row]])
    alone, all_rows = state_numbers(rollouts.take([row]), own), state_numbers(rollouts, segments)
    assert alone.prefixes is not None and all_rows.prefixes is not None
    for name, numbers in vars(alone.prefixes).items():
        assert torch.equal(numbers[0], getattr(all_rows.prefixes, name)[row, : own.max_segments]), name


@pytest.mark.parametrize(
    ("options", "prefixes", "weights"),
    [
        ({}, 1, 1),
        ({"baseline": "value"}, 1, 0),
        ({"baseline": "trace", "calibrate": "none"}, 0, 1),
        ({"baseline": "value", "calibrate": "none"}, 0, 0),
        ({"segmenter": "none"}, 0, 0),
    ],
    ids=str,
)
def test_only_what_is_asked_for_is_computed_and_once(
    options: dict[str, Any], prefixes: int, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for module, name in ((fit, "prefix_numbers"), (base, "gradient_norm_proxy")):
        whole = getattr(module, name)

        def counted(*args: Any, name: str = name, whole: Any = whole) -> Any:
            asked.append(name)
            return whole(*args)

        monkeypatch.setattr(module, name, counted)
    assign_credit(with_texts(), rr.RRedCoTConfig.from_mapping({**NEWLINES, **options}))
    assert (asked.count("prefix_numbers"), asked.count("gradient_norm_proxy")) == (prefixes, weights)


def test_numbers_of_other_segments_are_refused() -> None:
    rollouts, config = with_texts(), rr.RRedCoTConfig.from_mapping(NEWLINES)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    whole = state_numbers(rollouts, segments)
    for states, name in (
        (whole, "states.prefixes.tokens"),
        (dataclasses.replace(whole, prefixes=None), "states.gradient_norm_proxy"),
    ):
        with pytest.raises(
            ValueError, match=rf"{name}: expected shape \(20, \d+\), got \(20, {segments.max_segments}\)"
        ):
            assign_credit(rollouts, config, states=states)


def test_whoever_needs_tokens_says_so() -> None:
    rollouts = with_texts()
    segments = rr.get_segmenter("newline")(rollouts)
    bare, config = without_tokens(rollouts), rr.RRedCoTConfig.from_mapping(NEWLINES)
    with pytest.raises(ValueError, match=r"token_ids: .* give Rollouts.token_ids, or segments="):
        assign_credit(bare, config)
    with pytest.raises(ValueError, match=r"token_ids: calibration .* or their numbers as states="):
        assign_credit(bare, config, segments=segments)
    with pytest.raises(ValueError, match="rollouts: expected token_ids"):
        rr.check_segmenter(rr.get_segmenter("newline"), dataclasses.replace(rollouts, token_ids=None))
    unasked = dataclasses.replace(config, calibrate="none")
    assert torch.isfinite(assign_credit(bare, unasked, segments=segments).advantages).all()


def test_rollouts_without_tokens_keep_their_shape() -> None:
    rollouts = with_texts()
    bare = without_tokens(rollouts, log_probs=rollouts.log_probs)
    taken = bare.take([3, 1])
    assert bare.batch_size == 20 and taken.batch_size == 2 and taken.token_ids is None
    assert taken.log_probs is not None and rollouts.log_probs is not None
    assert torch.equal(taken.log_probs, rollouts.log_probs[[3, 1]])
    with pytest.raises(ValueError, match="response_mask: expected two dimensions"):
        rr.Rollouts(None, torch.ones(3), torch.ones(3), ["a"] * 3)
    with pytest.raises(ValueError, match="rewards: expected shape"):
        rr.Rollouts(None, torch.ones(3, 2), torch.ones(3, 1), ["a"] * 3)


@pytest.mark.parametrize("least", [-1e20, torch.finfo(torch.float32).min])
def test_a_stand_in_for_no_probability_at_all_does_not_stop_the_fit(least: float) -> None:
    rollouts = with_texts()
    assert rollouts.log_probs is not None
    log_probs = rollouts.log_probs.clone()
    log_probs[::3, ::4] = least
    rollouts = dataclasses.replace(rollouts, log_probs=log_probs)
    for baseline in ("value", "least_variance"):
        credit = assign_credit(rollouts, rr.RRedCoTConfig.from_mapping({**NEWLINES, "baseline": baseline}))
        assert credit.metrics["rredcot/fallback/uncalibrated/mean"] == 0.0
        assert torch.isfinite(credit.advantages).all() and torch.isfinite(credit.values).all()


def test_without_log_probs_there_are_no_weights() -> None:
    rollouts = with_texts(log_probs=None)
    segments = rr.get_segmenter("newline")(rollouts)
    states = state_numbers(rollouts, segments)
    assert states.gradient_norm_proxy is None
    trace = rr.RRedCoTConfig.from_mapping({**NEWLINES, "baseline": "trace"})
    with pytest.raises(ValueError, match="log_probs: baseline=least_variance and trace weigh segments by them"):
        assign_credit(without_tokens(rollouts), trace, segments=segments, states=states)
