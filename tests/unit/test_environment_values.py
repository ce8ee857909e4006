"""``environment``: the environment's own estimates in their places, what stands in for missing ones, and an exact gradient."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import NO_PROBES, Estimate
from rredcot_plugin.values.environment import EnvironmentEstimator, share_without, turn_values
from tests.unit.agent_policy import random_agent
from tests.unit.test_exact_segments import BIASED, EXACT, AnyFit
from tests.unit.text_policy import TextPolicy, expected_gradient

NOTHING: list[Any] = [None, [], 0.5, np.array(0.5), "0.5", {"a": 1.0}, {2: 1.0}, {-1: 1.0}, {0: "x"}, [None], ["x"], [math.nan], [math.inf, -math.inf], [10**400], [3e38], [[1.0, 2.0]]]  # fmt: skip
"""What an environment may leave instead of numbers."""


def random_rollouts(seed: int, rows: int = 9) -> tuple[rr.Rollouts, list[Any]]:
    """Rows with gaps, the first tokens masked in some, and what the environment says: too little, too much, or nothing."""
    luck, g = random.Random(seed), torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, 12, generator=g) > 0.3
    mask[1] = False
    rewards = torch.zeros(rows, 12)
    rewards[torch.arange(rows), mask.long().argmax(dim=1)] = torch.rand(rows, generator=g)
    said = [[luck.choice([luck.random(), None, math.nan, "no"]) for _ in range(luck.randint(0, 7))] for _ in range(rows)]  # fmt: skip
    said[2], said[3] = None, np.array([0.25, 0.5])
    return rr.Rollouts(torch.zeros(rows, 12, dtype=torch.int64), mask, rewards, [0] * (rows - 1) + [1]), said


def is_number(x: Any) -> bool:
    return isinstance(x, float) and math.isfinite(x)


def slow(rollouts: rr.Rollouts, segments: rr.Segments, said: list[Any], row: int) -> list[float] | None:
    """Of every state, token by token; None where nothing is known."""
    mask, turn, latest, of_token = rollouts.response_mask[row].tolist(), -1, math.nan, {}
    numbers = list(said[row]) if said[row] is not None else []
    for t, own in enumerate(mask):
        if own and (t == 0 or not mask[t - 1]):
            turn += 1
            given = numbers[turn] if turn < len(numbers) else None
            latest = float(given) if is_number(given) else latest
        of_token[t] = latest
    others = [r for r in range(rollouts.batch_size) if r != row and rollouts.group_ids[r] == rollouts.group_ids[row]]  # fmt: skip
    prior = sum(rollouts.outcomes[r].item() for r in others) / max(1, len(others))
    if all(math.isnan(of_token[t]) for t, own in enumerate(mask) if own):
        return None
    starts = segments.starts[row, : int(segments.num_segments[row])].tolist()
    return [prior if math.isnan(of_token[t]) else of_token[t] for t in starts]


@pytest.mark.parametrize("segmenter", [{"name": "turn"}, {"name": "fixed", "tokens": 2, "max_segments": 99}])
@pytest.mark.parametrize("seed", range(5))
def test_every_state_has_the_last_number_up_to_it(seed: int, segmenter: dict[str, Any]) -> None:
    rollouts, said = random_rollouts(seed)
    options = dict(segmenter)
    segments = rr.get_segmenter(options.pop("name"), **options)(rollouts)
    scores = turn_values(rollouts.response_mask, said)
    given = rr.Rollouts(rollouts.token_ids, rollouts.response_mask, rollouts.rewards, rollouts.group_ids, token_scores={"environment": scores})  # fmt: skip
    found = EnvironmentEstimator()(None, rollouts=given, segments=segments)
    assert torch.isfinite(found.values).all()
    unknown = 0
    for row in range(rollouts.batch_size):
        expected = slow(rollouts, segments, said, row)
        unknown += expected is None
        assert bool(found.known[row]) == (expected is not None), row
        if expected is not None:
            assert found.values[row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-6), row
    assert 0 < unknown < rollouts.batch_size


def test_missing_numbers_are_counted_by_turn() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 1], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    assert share_without(turn_values(mask, [[None, 0.5, 0.7], [0.1, 0.2], None, None]), mask) == 0
    assert share_without(turn_values(mask, [[0.1, 0.5], [0.1, None, 0.3], None, None]), mask) == pytest.approx(
        2 / 3
    )
    assert share_without(turn_values(mask[2:], [None, None]), mask[2:]) == 0, "there are no later turns"


@pytest.mark.parametrize("wrong", NOTHING)
def test_whatever_the_environment_leaves_credit_is_finite_and_that_of_no_values(wrong: Any) -> None:
    mask = torch.tensor([[1, 1, 0, 1, 1]] * 4).bool()
    rewards = torch.zeros(4, 5)
    rewards[:2, 4] = 1.0
    config = rr.RRedCoTConfig(segmenter="turn", value_estimator="environment")

    def credit(scores: dict[str, torch.Tensor] | None) -> rr.Credit:
        rollouts = rr.Rollouts(torch.zeros(4, 5, dtype=torch.int64), mask, rewards, [0] * 4, token_scores=scores)
        return rr.assign_credit(rollouts, config)

    found = credit({"environment": turn_values(mask, [wrong] * 4)})
    assert turn_values(mask, [wrong] * 4).isnan().all()
    assert torch.isfinite(found.advantages).all() and torch.isfinite(found.values).all()
    assert (found.advantages[~mask] == 0).all()
    assert torch.equal(found.advantages, credit(None).advantages)
    assert found.metrics["rredcot/fallback/group_mean/mean"] == 1.0
    used = credit({"environment": turn_values(mask, [[None, 0.875]] * 4)})
    assert used.values[:, 1].tolist() == [0.875] * 4
    assert used.metrics["rredcot/fallback/group_mean/mean"] == 0.0


# ---- by enumeration


@dataclass(frozen=True)
class Told:
    """The estimator with numbers that ``said`` makes of what came before a turn, or of the whole trace (``ahead``)."""

    ahead: bool = False
    proposes: ClassVar[str] = NO_PROBES
    calibrates: ClassVar[bool] = False
    max_proposals: ClassVar[int] = 1

    def __call__(self, probed: None, *, rollouts: rr.Rollouts, segments: rr.Segments, **_: Any) -> Estimate:
        said = []
        for text, spans, mask in zip(rollouts.texts or [], rollouts.token_offsets or [], rollouts.response_mask, strict=True):  # fmt: skip
            own = mask.nonzero()[:, 0].tolist()
            begins = [spans[i][0] for i in range(len(own)) if i == 0 or own[i] > own[i - 1] + 1]
            known = [text if self.ahead else text[:begin] for begin in begins]
            said.append([None if len(past) % 3 == 1 else random.Random(past).random() for past in known])
        scores = {"environment": turn_values(rollouts.response_mask, said)}
        with_scores = rr.Rollouts(rollouts.token_ids, rollouts.response_mask, rollouts.rewards, rollouts.group_ids, token_scores=scores)  # fmt: skip
        return EnvironmentEstimator()(None, rollouts=with_scores, segments=segments)


def off(policy: TextPolicy, size: int, segmenter: dict[str, Any], *, ahead: bool = False, **options: Any) -> float:
    """‖E[ĝ] − g‖ / ‖g‖."""
    given = {**segmenter, "value_estimator": f"{__name__}:Told", "value_kwargs": {"ahead": ahead}, "scale": "none"}
    found = expected_gradient(policy, rr.RRedCoTConfig.from_mapping({**given, **options}), size, AnyFit, [0, 3])
    return float((found - policy.exact_gradient).norm() / policy.exact_gradient.norm())


TURNS = {"segmenter": "turn"}
LINES = {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", "newline"]}}


@pytest.mark.parametrize("segmenter", [TURNS, LINES])
def test_estimates_of_the_past_leave_the_gradient_exact_however_wrong_they_are(segmenter: dict[str, Any]) -> None:
    assert off(random_agent(0, paid=1.0), 2, segmenter) < EXACT
    assert off(random_agent(1), 2, segmenter, prior_from_group=False) < EXACT


def test_estimates_that_look_ahead_do_not() -> None:
    assert off(random_agent(0), 2, TURNS, ahead=True) > BIASED
