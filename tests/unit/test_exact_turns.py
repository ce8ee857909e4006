"""Credit of an agent's turns is exact, rewards on the way included, by enumeration of all groups of one that calls a tool.

What the tool answers is drawn from probabilities that depend on the call; rollouts have one to three turns.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.credit import turn_rewards
from tests.unit.agent_policy import CALL, DONE, random_agent
from tests.unit.test_exact_segments import BIASED, EXACT, AnyFit
from tests.unit.text_policy import TextPolicy, expected_gradient, expected_gradient_of

BESIDE = [0, 3]
TURNS = {"segmenter": "turn"}
LINES = {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", "newline"]}}
BASELINES = ["least_variance", "value", "trace", "token"]


def config(segmenter: dict, **options: object) -> rr.RRedCoTConfig:
    return rr.RRedCoTConfig.from_mapping(
        {**segmenter, "value_estimator": "confidence", "scale": "none", **options}
    )


def off(policy: TextPolicy, found: torch.Tensor) -> float:
    """‖E[ĝ] − g‖ / ‖g‖."""
    return float((found - policy.exact_gradient).norm() / policy.exact_gradient.norm())


@pytest.mark.parametrize("paid", [0.0, 1.0])
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("segmenter", [TURNS, LINES])
def test_turns_and_their_lines_leave_the_gradient_exact(segmenter: dict, baseline: str, paid: float) -> None:
    policy = random_agent(0, paid)
    found = expected_gradient(policy, config(segmenter, baseline=baseline), 2, AnyFit, BESIDE)
    assert off(policy, found) < EXACT


def test_in_groups_of_three_too_and_where_rewards_on_the_way_are_redistributed() -> None:
    policy = random_agent(1, paid=1.0)
    own = config(LINES, baseline="least_variance")
    assert off(policy, expected_gradient(policy, own, 3, AnyFit, BESIDE)) < EXACT
    own = config(TURNS, baseline="value", turn_rewards="redistribute")
    assert off(policy, expected_gradient(policy, own, 2, AnyFit, BESIDE)) < EXACT


# ---- what would be biased


def by_turn(rollouts: rr.Rollouts, *, deviation: bool) -> torch.Tensor:
    """The return less the mean of the group's at the same turn, the own one included; divided by their deviation."""
    ids = rr.get_segmenter("turn")(rollouts).segment_ids
    returns, advantages = rollouts.outcomes, torch.zeros(ids.shape)
    for turn in range(int(ids.max()) + 1):
        there = (ids == turn).any(1)
        own = returns[there]
        scale = own.std() + 1e-6 if deviation and there.sum() > 1 else 1.0
        numbers = torch.zeros(len(ids)).masked_scatter(there, (own - own.mean()) / scale)
        advantages = torch.where(ids == turn, numbers[:, None], advantages)
    return advantages


def among_equals(rollouts: rr.Rollouts) -> torch.Tensor:
    """The return less the mean of the *others* that have as many turns: how many there will be is not known yet."""
    turns, returns = rr.get_segmenter("turn")(rollouts).num_segments, rollouts.outcomes
    same = (turns[:, None] == turns[None]) & ~torch.eye(len(turns)).bool()
    mean = (same * returns).sum(1) / same.sum(1).clamp(min=1)
    return torch.where(rollouts.response_mask, (returns - mean)[:, None], 0.0)


class BeforeTheCall:
    """A state before the call and its answer: its boundary depends on whether the model is going to call."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        ids = torch.full(rollouts.response_mask.shape, -1)
        for row, spans in enumerate(rollouts.token_offsets or []):
            columns = rollouts.response_mask[row].nonzero()[:, 0]
            calls = torch.tensor([rollouts.texts[row][start:end] == CALL for start, end in spans])
            ids[row, columns] = calls.long().cumsum(0) - calls[0].long()
        return rr.Segments(ids, ids.amax(1) + 1)


@pytest.mark.parametrize("deviation", [False, True])
def test_normalising_by_turn_with_the_own_sample_is_biased(deviation: bool) -> None:
    policy = random_agent(0)
    found = expected_gradient_of(policy, lambda rollouts: by_turn(rollouts, deviation=deviation), 2)
    assert off(policy, found) > BIASED
    scaled = found * (found * policy.exact_gradient).sum() / found.square().sum()
    assert off(policy, scaled) > BIASED, "in its direction"


def test_comparing_rollouts_of_as_many_turns_is_biased() -> None:
    policy = random_agent(0)
    assert off(policy, expected_gradient_of(policy, among_equals, 2)) > BIASED


def test_a_state_before_the_call_is_biased() -> None:
    policy = random_agent(0)
    own = config({"segmenter": f"{__name__}:BeforeTheCall"}, baseline="least_variance")
    assert off(policy, expected_gradient(policy, own, 2, AnyFit, BESIDE)) > BIASED


# ---- luck


def state_values(policy: TextPolicy) -> dict[tuple[str, ...], float]:
    """The expected outcome after every history, with the tool's answers or right before them."""
    weight, total = Counter(), Counter()
    for trace, probability, outcome in zip(
        policy.world.traces, policy.probabilities.tolist(), policy.rewards.tolist(), strict=True
    ):
        for end in range(len(trace) + 1):
            weight[trace[:end]] += probability
            total[trace[:end]] += probability * outcome
    return {history: total[history] / weight[history] for history in weight}


def last_advantages(policy: TextPolicy, after_the_answer: bool) -> torch.Tensor:
    """Of the last turn of every trace, from the true values of states after the tool's answers, or before them."""
    known, traces = state_values(policy), policy.world.traces
    rollouts = policy.rollouts(list(range(len(traces))), [0] * len(traces))
    segments = rr.get_segmenter("turn")(rollouts)
    values = torch.zeros(segments.exists.shape)
    for row, trace in enumerate(traces):
        for state, start in enumerate(segments.starts[row, : int(segments.num_segments[row])].tolist()):
            values[row, state] = known[trace[: start - (state > 0 and not after_the_answer)]]
    credit = rr.assign_credit(rollouts, config(TURNS, lam=0.0), segments=segments, values=values)
    return torch.stack([credit.advantages[row, own[-1]] for row, own in enumerate(policy.world.columns)]).double()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_turn_is_not_blamed_for_what_the_tool_answered(seed: int) -> None:
    """With true values after the answer, its advantage is 0 on average whatever was answered; before it, the luck of the
    answer is added to it, and to its variance."""
    policy = random_agent(seed)
    known, after, before = state_values(policy), *(last_advantages(policy, yes) for yes in (True, False))
    answered = {trace[: trace.index(DONE) + 1] for trace in policy.world.traces if DONE in trace}
    assert len(answered) == 2
    for history in answered:
        rows = [row for row, trace in enumerate(policy.world.traces) if trace[: len(history)] == history]
        p = policy.probabilities[rows] / policy.probabilities[rows].sum()
        luck = known[history] - known[history[:-1]]
        assert abs(luck) > 1e-2
        assert float(p @ after[rows]) == pytest.approx(0, abs=1e-6)
        assert float(p @ before[rows]) == pytest.approx(luck, abs=1e-6)
        assert float(p @ before[rows] ** 2) == pytest.approx(float(p @ after[rows] ** 2) + luck**2, abs=1e-6)


# ---- variance


def variance(policy: TextPolicy, own: rr.RRedCoTConfig, size: int) -> float:
    """E‖ĝ − g‖² of the gradient of a group."""
    log_probs, columns = policy.log_probs(), policy.world.columns
    scores = torch.zeros(*log_probs.shape, policy.logits.numel(), dtype=torch.float64)
    for row, step in itertools.product(*map(range, log_probs.shape)):
        if step < len(columns[row]):
            (found,) = torch.autograd.grad(log_probs[row, step], policy.logits, retain_graph=True)
            scores[row, step] = found.flatten()
    total = 0.0
    for members in itertools.combinations_with_replacement(range(len(columns)), size):
        credit = rr.assign_credit(policy.rollouts(list(members), [0] * size), own)
        parts = [credit.advantages[at, columns[row]].double() @ scores[row, : len(columns[row])] for at, row in enumerate(members)]  # fmt: skip
        orders = math.factorial(size) / math.prod(map(math.factorial, Counter(members).values()))
        distance = (sum(parts) / size - policy.exact_gradient.flatten()).square().sum()
        total += orders * float(policy.probabilities[list(members)].prod() * distance)
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_rewards_on_the_way_add_less_variance_where_they_stay(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_agent(seed, paid=1.0)
    options = {"baseline": "trace", "calibrate": "none"}
    kept = variance(policy, config(TURNS, **options), 2)
    spread = variance(policy, config(TURNS, turn_rewards="redistribute", **options), 2)
    nothing: Callable[..., torch.Tensor] = lambda paid, *_, **__: torch.zeros_like(paid)  # noqa: E731
    monkeypatch.setattr(turn_rewards, "expected_of_others", nothing)
    unmeasured = variance(policy, config(TURNS, **options), 2)
    assert kept < 0.7 * spread
    assert kept < unmeasured, "than without a baseline of their own"
