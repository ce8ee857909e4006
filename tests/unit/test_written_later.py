"""What is written or said later changes nothing before it: odd texts, and numbers that an environment says late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.text.tool_calls import calls_in
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.environment import EnvironmentEstimator
from rredcot_plugin.values.mixture import MixtureEstimator

IN_BRACES = ["Well", "\n", "```py {", "x ####", " 4", "}", "\n", "foo", "\n"]
BOXED_IN_BRACES = ["Well", "\n", "``` {", "\\boxed{", "4", "}", "}", "\n", "foo", "\n"]


def trace(pieces: Sequence[str], masked: Sequence[int] = ()) -> rr.Rollouts:
    """One response with these tokens."""
    ends = np.cumsum([len(piece) for piece in pieces])
    mask = torch.ones(1, len(pieces)).bool()
    mask[0, list(masked)] = False
    spans = np.stack([ends - [len(piece) for piece in pieces], ends], axis=1)
    signal = -torch.linspace(0.1, 0.9, len(pieces))[None]
    given: dict[str, Any] = {"log_probs": signal, "entropies": -signal}
    texts, offsets = ["".join(pieces)], [spans]
    tokens = torch.zeros(1, len(pieces), dtype=torch.int64)
    return rr.Rollouts(tokens, mask, torch.zeros(1, len(pieces)), [0], texts=texts, token_offsets=offsets, **given)


def segments(pieces: Sequence[str], name: str, masked: Sequence[int] = ()) -> list[int]:
    found: list[int] = (
        rr.RRedCoTConfig(segmenter=name).build_segmenter()(trace(pieces, masked)).segment_ids[0].tolist()
    )
    return found


@pytest.mark.parametrize("name", ["sentence", "newline", "think_answer", "code", "turn"])
@pytest.mark.parametrize("pieces", [IN_BRACES, BOXED_IN_BRACES])
def test_openings_in_the_braces_of_a_fence_stay(pieces: list[str], name: str) -> None:
    whole = segments(pieces, name)
    for length in range(1, len(pieces)):
        assert segments(pieces[:length], name) == whole[:length]


@pytest.mark.parametrize("name", ["sentence", "newline", "think_answer", "turn"])
def test_what_a_tool_wrote_first_opens_no_answer_before_another_call_either(name: str) -> None:
    pieces = ["The answer is", " a", "b", ". ", "#### ", "4", ". ", "ok"]
    later = segments([*pieces, "tool", "x"], name, [0, 8])
    assert segments(pieces, name, [0]) == later[:8]


@pytest.mark.parametrize("opening", ["#### ", "```py\n", "</think>", "\\boxed{"])
def test_a_token_without_bytes_is_in_an_open_answer_whether_or_not_its_turn_ends_with_it(opening: str) -> None:
    """Rows of a vocabulary that stand for no text are sampled too."""
    pieces = ["So.\n", opening, "4", "", "tool\n", ". ", "ok"]
    of_a_token = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 1}}
    cut = rr.RRedCoTConfig.from_mapping(of_a_token).build_segmenter()
    ends, goes_on = (cut(trace(pieces, masked)).segment_ids[0].tolist() for masked in ([4], []))
    assert ends == [0, 1, 1, 1, -1, 2, 3]
    assert goes_on[:4] == ends[:4] == cut(trace(pieces[:4])).segment_ids[0].tolist()


@pytest.mark.parametrize("name", ["turn", "nested"])
def test_a_turn_that_ends_within_a_character_is_a_turn(name: str) -> None:
    """It was cut by the length limit; what the tool answers shows that the character is never finished."""
    assert segments(["a", "\ufffd", "tool", "b"], name, [2]) == [0, 0, -1, 1]
    for undecided in (["a", "\ufffd", "", "b"], ["a", "\ufffd", "\ufffd", "b"]):
        assert segments(undecided, name, [2]) == [0, 0, -1, 0]


def test_a_call_within_a_call_counts_as_long_as_it_did() -> None:
    text = "<tool_call>a<|tool_call>b<tool_call|>c</tool_call> <tool_call>d</tool_call>"
    whole = calls_in(text)
    assert [call for _, call in whole] == ["b", "d"]
    for length in range(len(text)):
        assert calls_in(text[:length]) == [call for call in whole if call[0] <= length]


def test_mixtures_take_a_number_from_where_it_is_said() -> None:
    config = rr.RRedCoTConfig(
        segmenter="fixed",
        segmenter_kwargs={"tokens": 1},
        scale="none",
        calibrate="none",
        value_estimator="mixture",
        value_kwargs={"estimators": ["confidence", "environment"]},
    )

    def of_the_first_turn(*, goes_on: bool) -> list[float]:
        mask = torch.tensor([[1, 1, 0, 1, 1, 0]] * 4).bool()
        said = torch.full(mask.shape, torch.nan)
        said[1:, 3] = 0.1
        said[0, 3] = 0.9
        mask[0, 3:] &= goes_on
        rewards = torch.zeros(mask.shape)
        rewards[torch.arange(4), [4 if goes_on else 1, 4, 4, 4]] = torch.tensor([1.0, 0.0, 0.0, 1.0])
        log_probs, tokens = torch.full(mask.shape, -0.1), torch.zeros(mask.shape, dtype=torch.int64)
        scores = {"environment": said}
        rollouts = rr.Rollouts(tokens, mask, rewards, [0] * 4, log_probs=log_probs, token_scores=scores)
        credit = rr.assign_credit(rollouts, config)
        if goes_on:
            assert credit.values[0, 2] > credit.values[1, 2] + 0.3, "what is said counts from there on"
        return credit.baselines[0, :2].tolist()

    assert of_the_first_turn(goes_on=True) == of_the_first_turn(goes_on=False)


def test_which_groups_a_fit_sees_is_not_up_to_how_long_a_rollout_gets() -> None:
    config = rr.RRedCoTConfig(
        segmenter="fixed", segmenter_kwargs={"tokens": 2}, scale="none", value_estimator="confidence"
    )

    def rollouts(seed: int, goes_on: int) -> rr.Rollouts:
        generator = torch.Generator().manual_seed(seed)
        mask = (torch.arange(20) < 10).repeat(24, 1)
        mask[0, 10 : 10 + goes_on] = True
        rewards = torch.zeros(24, 20)
        rewards[torch.arange(24), mask.sum(1) - 1] = torch.randint(0, 2, (24,), generator=generator).float()
        signals = torch.rand(3, 24, 20, generator=generator)
        given = {"log_probs": -signals[0], "entropies": signals[1], "sum_pi_squared": signals[2]}
        groups = [f"{seed} {row // 4}" for row in range(24)]
        return rr.Rollouts(torch.zeros(24, 20, dtype=torch.int64), mask, rewards, groups, **given)

    def baselines(goes_on: int, most: int) -> torch.Tensor:
        calibrator = OutcomeCalibrator(max_states=most)
        rr.assign_credit(rollouts(1, 0), config, calibrator=calibrator)
        return rr.assign_credit(rollouts(2, goes_on), config, calibrator=calibrator).baselines[0, :5]

    for most in (48, 72, 96):  # of 24 × 4 states after a prompt
        assert torch.equal(baselines(0, most), baselines(10, most))
    assert not torch.equal(baselines(0, 48), baselines(0, 96)), "a sample is another fit"


def test_a_mixture_of_one_stands_in_as_that_one_does() -> None:
    """Where nothing has been said yet; what builds on a mixture (``iterative``) reads these values too."""
    said = torch.tensor([[torch.nan, torch.nan, 0.9]] * 3)
    rewards = torch.tensor([[0.0, 0.0, 1.0]] * 3)
    rollouts = rr.Rollouts(
        torch.zeros(3, 3, dtype=torch.int64),
        torch.ones(3, 3).bool(),
        rewards,
        [0] * 3,
        token_scores={"environment": said},
    )
    segments = rr.Segments(torch.arange(3).expand(3, 3).contiguous(), torch.full((3,), 3))
    own = EnvironmentEstimator()(None, rollouts=rollouts, segments=segments)
    mixed = MixtureEstimator(["environment"]).combine([own], rollouts, segments)
    assert torch.allclose(mixed.values, own.values) and own.values[0].tolist() == pytest.approx([1.0, 1.0, 0.9])
    assert torch.equal(mixed.at_states(), own.at_states()) and not mixed.at_states()[:, :2].any()


@pytest.mark.parametrize("name", ["monte_carlo", "environment"])
def test_without_refinement_iterative_is_its_base_where_that_knows_nothing(name: str) -> None:
    said = torch.tensor([[torch.nan, torch.nan, 0.8, 0.9], [0.5, 0.6, 0.7, 0.8]])
    mask = torch.ones(2, 4, dtype=torch.bool)
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]] * 2)
    rollouts = rr.Rollouts(torch.zeros(2, 4, dtype=torch.int64), mask, rewards, [0, 0], token_scores={name: said})
    segments = rr.Segments(torch.arange(4).repeat(2, 1), torch.tensor([4, 4]))

    def values(estimator: str, **options: object) -> torch.Tensor:
        config = rr.RRedCoTConfig(value_estimator=estimator, value_kwargs=options)
        return rr.assign_credit(rollouts, config, segments=segments).values

    assert torch.equal(values("iterative", base=name, alpha=0.0), values(name))
    assert float(values("iterative", base=name, alpha=0.5)[0, 1]) == 1.0, "the mean of the others"
