"""``baseline: token``: the optimal token baseline without the rollout's own sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.baselines.token import WEIGHTS
from rredcot_plugin.baselines.weights import FLOOR
from tests.unit.tabular import AllGroups, TabularPolicy, Trace, rollouts_of

OPTIONS = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3, "answer_markers": []}, "baseline": "token"}
CONFIG = rr.RRedCoTConfig(**OPTIONS, scale="none")
EXACT = 1e-6
"""Largest bias of a gradient, relative to its norm: what float32 advantages leave."""


def last_of(mask: torch.Tensor) -> torch.Tensor:
    """The last unmasked column of each row."""
    return torch.where(mask, torch.arange(mask.shape[1]), 0).amax(1)


def batch(seed: int = 0, rows: int = 12, width: int = 11, groups: int = 4) -> rr.Rollouts:
    """Ragged traces with holes in their masks, an empty one, and one that is alone in its group."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.rand(rows, width, generator=generator).add(0.05).log().clamp(max=0)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths) & (torch.rand(rows, width, generator=generator) > 0.15)
    mask[1] = False
    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), last_of(mask)] = torch.rand(rows, generator=generator)
    square = log_probs.exp().square()
    sum_pi_squared = square + (1 - log_probs.exp()).square() * torch.rand(rows, width, generator=generator)
    ids = torch.zeros(rows, width, dtype=torch.int64)
    group_ids = ["alone", *(f"g{i % groups}" for i in range(1, rows))]
    return rr.Rollouts(
        ids, mask, rewards, group_ids, log_probs=log_probs, sum_pi_squared=sum_pi_squared.clamp(max=1)
    )


def reference(rollouts: rr.Rollouts, penalties: torch.Tensor | None = None) -> torch.Tensor:
    """B_t by its definition, token by token."""
    assert rollouts.log_probs is not None and rollouts.sum_pi_squared is not None
    found = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    traces = []
    for row, mask in enumerate(rollouts.response_mask):
        pi = rollouts.log_probs[row][mask].double().exp()
        norms = (1 - 2 * pi + rollouts.sum_pi_squared[row][mask].double()).clamp(min=0).tolist()
        kept = [0.0] * len(norms) if penalties is None else penalties[row][mask].tolist()
        traces.append((norms, kept, float(rollouts.outcomes[row]) - sum(kept)))
    for row, mask in enumerate(rollouts.response_mask):
        own = rollouts.group_ids[row]
        mates = [
            traces[j]
            for j, group in enumerate(rollouts.group_ids)
            if group == own and j != row and torch.isfinite(rollouts.outcomes[j])
        ]
        for t, column in enumerate(mask.nonzero()[:, 0].tolist()):
            alive = [trace for trace in mates if len(trace[0]) > t]
            pairs = [(sum(n[: t + 1]) + FLOOR, score + sum(kept[t:])) for n, kept, score in alive or mates]
            if pairs:
                found[row, column] = sum(w * r for w, r in pairs) / sum(w for w, _ in pairs)
    return found


def token_baselines(rollouts: rr.Rollouts, config: rr.RRedCoTConfig = CONFIG) -> torch.Tensor:
    """B_t read off the advantages: at λ = 1 they are R − B_t."""
    credit = rr.assign_credit(rollouts, config)
    return torch.where(rollouts.response_mask, rollouts.outcomes[:, None] - credit.advantages, 0.0)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_it_is_what_its_definition_says(seed: int, groups: int) -> None:
    rollouts = batch(seed, groups=groups)
    assert torch.allclose(token_baselines(rollouts), reference(rollouts).float(), atol=1e-5)


def test_penalties_count_from_their_token_on() -> None:
    rollouts = batch(3)
    penalties = torch.where(rollouts.response_mask, -torch.rand(12, 11) / 10, 0.0)
    rollouts = replace(rollouts, rewards=rollouts.rewards + penalties, penalties=penalties)
    one = replace(CONFIG, segmenter_kwargs={"tokens": 1, "answer_markers": [], "max_segments": 99})
    to_go = penalties.flip(1).cumsum(1).flip(1)
    score = rollouts.outcomes - penalties.sum(1)
    found = score[:, None] + to_go - rr.assign_credit(rollouts, one).advantages
    expected = reference(rollouts, penalties).float()
    mask = rollouts.response_mask
    assert torch.allclose(found[mask], expected[mask], atol=1e-5)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.integers(0, 10**6), st.permutations(range(12)))
def test_neither_the_order_of_rows_nor_padding_matters_and_masked_tokens_get_nothing(
    seed: int, order: list[int]
) -> None:
    rollouts = batch(seed)
    advantages = rr.assign_credit(rollouts, replace(CONFIG, scale="group_std")).advantages
    assert (advantages[~rollouts.response_mask] == 0).all() and torch.isfinite(advantages).all()
    shuffled = rr.assign_credit(rollouts.take(order), replace(CONFIG, scale="group_std")).advantages
    assert torch.allclose(shuffled, advantages[order], atol=1e-6)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (3, 2))

    wider = rr.Rollouts(
        *(padded(x) for x in (rollouts.token_ids, rollouts.response_mask, rollouts.rewards)),
        rollouts.group_ids,
        log_probs=padded(rollouts.log_probs),
        sum_pi_squared=padded(rollouts.sum_pi_squared),
    )
    assert torch.allclose(
        rr.assign_credit(wider, replace(CONFIG, scale="group_std")).advantages, padded(advantages), atol=1e-6
    )


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none", "whiten"])
@pytest.mark.parametrize(
    "options", [{}, {"lam": 0.5}, {"match_grpo": True}, {"segmenter": "none", "segmenter_kwargs": {}}]
)
def test_credit_has_one_number_per_segment(scale: str, options: dict[str, object]) -> None:
    rollouts = batch(5)
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**OPTIONS | options, scale=scale))
    exists = credit.segments.exists
    assert credit.baselines is not None and credit.baselines.shape == exists.shape == credit.deltas.shape
    assert (credit.baselines[~exists] == 0).all() and (credit.deltas[~exists] == 0).all()
    assert torch.isfinite(credit.advantages).all() and float(credit.advantages.abs().max()) > 0.05
    row = int(credit.segments.num_segments.argmax())
    inside = credit.segments.segment_ids[row] == 0
    mean = reference(rollouts)[row][inside].mean()
    assert float(credit.baselines[row, 0]) == pytest.approx(float(mean), abs=1e-5)
    assert torch.allclose(credit.segment_rewards.sum(1), rollouts.outcomes, atol=1e-5)


def test_below_lambda_one_it_takes_the_place_of_the_value() -> None:
    rollouts, config = batch(7), replace(CONFIG, lam=0.5)
    value = rr.assign_credit(rollouts, replace(config, baseline="value"))
    moved = rr.assign_credit(rollouts, config).advantages - value.advantages
    expected = rr.spread_to_tokens(value.values, value.segments.segment_ids) - reference(rollouts).float()
    assert torch.allclose(moved, torch.where(rollouts.response_mask, expected, 0.0), atol=1e-5)


def test_with_equal_rewards_a_group_earns_nothing() -> None:
    rollouts = batch(2)
    mask = rollouts.response_mask
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(12), last_of(mask)] = 1.0
    rollouts = replace(rollouts, rewards=torch.where(mask, rewards, 0.0), group_ids=["g"] * 12)
    filled = mask.any(1)
    advantages = rr.assign_credit(rollouts.take(filled.nonzero()[:, 0].tolist()), CONFIG).advantages
    assert float(advantages.abs().max()) < 1e-6


def test_alone_or_without_usable_siblings_it_is_nothing() -> None:
    rollouts = batch(4)
    rewards = rollouts.rewards.clone()
    broken = [row for row, group in enumerate(rollouts.group_ids) if group == "g2"][1:]
    for row in broken:
        rewards[row, rollouts.response_mask[row].nonzero()[0, 0]] = torch.nan
    found = rr.assign_credit(replace(rollouts, rewards=rewards), CONFIG)
    assert torch.isfinite(found.advantages).all() and (found.advantages[broken] == 0).all()
    only = next(row for row, group in enumerate(rollouts.group_ids) if group == "g2")
    for row in (0, only):
        mask = rollouts.response_mask[row]
        assert torch.allclose(found.advantages[row][mask], rollouts.outcomes[row].expand(int(mask.sum())))


def test_what_it_reads_must_be_there() -> None:
    rollouts = batch()
    for name in ("log_probs", "sum_pi_squared"):
        with pytest.raises(
            ValueError, match=rf"{name}: baseline=token .* give Rollouts\.{name}, or use baseline="
        ):
            rr.assign_credit(replace(rollouts, **{name: None}), CONFIG)
    with pytest.raises(ValueError, match="sum_pi_squared: expected numbers from 0 to 1, got"):
        replace(rollouts, sum_pi_squared=torch.full((12, 11), 1.5))
    with pytest.raises(ValueError, match="sum_pi_squared: expected finite"):
        replace(rollouts, sum_pi_squared=torch.full((12, 11), torch.nan))
    with pytest.raises(ValueError, match=r"weight='all': expected one of prefix, token"):
        rr.RRedCoTConfig.from_mapping({"baseline": "token", "baseline_kwargs": {"weight": "all"}})


# ---- the expected gradient


def length_of(trace: Trace) -> int:
    """A trace ends with its first 0, or when its steps are over."""
    return trace.index(0) + 1 if 0 in trace else len(trace)


def ending_policy(seed: int) -> TabularPolicy:
    """A policy whose traces end early; what would follow the end does not matter to the reward."""
    policy = TabularPolicy.random((2, 2, 3), seed)
    kept = torch.stack([policy.rewards[policy.traces.index(_continued(trace))] for trace in policy.traces])
    return replace(policy, rewards=kept)


def _continued(trace: Trace) -> Trace:
    end = length_of(trace)
    return (*trace[:end], *[1] * (len(trace) - end))


def rollouts_with_ends(policy: TabularPolicy, rows: torch.Tensor, group_ids: list[int], hole: bool) -> rr.Rollouts:
    """Traces up to their end, with Σ π²; with ``hole`` a masked token after the first, as of a tool."""
    full = rollouts_of(policy, rows, group_ids)
    lengths = torch.tensor([length_of(trace) for trace in policy.traces])[rows]
    mask = torch.arange(full.token_ids.shape[1]) < lengths[:, None]
    rewards = torch.zeros(mask.shape).scatter_(1, lengths[:, None] - 1, policy.rewards[rows].float()[:, None])
    columns = []
    for step, width in enumerate(policy.choices):
        states = torch.tensor([policy.states[trace[:step]] for trace in policy.traces])
        columns.append(policy.logits[states, :width].softmax(1).square().sum(1))
    squares = torch.stack(columns, 1).detach().float()[rows]
    tensors = (full.token_ids, mask, rewards, full.log_probs, squares)
    if hole:
        tensors = tuple(torch.cat([x[:, :1], torch.zeros_like(x[:, :1]), x[:, 1:]], 1) for x in tensors)
    ids, mask, rewards, log_probs, squares = tensors
    return rr.Rollouts(ids, mask, rewards, group_ids, log_probs=log_probs, sum_pi_squared=squares)


def relative_bias(groups: AllGroups, hole: bool = False, **options: object) -> float:
    ids = [row // groups.size for row in range(len(groups.rows))]
    rollouts = rollouts_with_ends(groups.policy, groups.rows, ids, hole)
    advantages = rr.assign_credit(rollouts, rr.RRedCoTConfig(**OPTIONS | {"scale": "none"} | options)).advantages
    if hole:
        assert (advantages[:, 1] == 0).all()
        advantages = torch.cat([advantages[:, :1], advantages[:, 2:]], 1)
    exact = groups.policy.exact_gradient
    return float((groups.expected_gradient(advantages) - exact).norm() / exact.norm())


@pytest.mark.parametrize("weight", sorted(WEIGHTS))
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_expected_gradient_stays_exact(weight: str, size: int, seed: int) -> None:
    groups = AllGroups(ending_policy(seed), size)
    assert relative_bias(groups, baseline_kwargs={"weight": weight}) < EXACT
    assert relative_bias(groups, hole=True, baseline_kwargs={"weight": weight}) < EXACT


@pytest.mark.parametrize("segmenter", [{"segmenter": "none", "segmenter_kwargs": {}}, {"calibrate": "none"}])
def test_it_stays_exact_with_any_segments_and_values(segmenter: dict[str, object]) -> None:
    assert relative_bias(AllGroups(ending_policy(2), 3), **segmenter) < EXACT


def test_the_own_sample_in_the_mean_would_bias_it() -> None:
    """verl's optimal token baseline, in the terms of this test."""
    groups = AllGroups(ending_policy(0), 2)
    ids = [row // 2 for row in range(len(groups.rows))]
    rollouts = rollouts_with_ends(groups.policy, groups.rows, ids, hole=False)
    assert rollouts.log_probs is not None and rollouts.sum_pi_squared is not None
    mask, group = rollouts.response_mask, torch.tensor(ids)
    norms = torch.where(mask, 1 - 2 * rollouts.log_probs.exp() + rollouts.sum_pi_squared, 0.0)
    weight = torch.where(mask, norms.cumsum(1), 0.0)
    sums = [
        torch.zeros(len(ids), mask.shape[1]).index_add_(0, group, x)[group]
        for x in (weight * rollouts.outcomes[:, None], weight)
    ]
    advantages = torch.where(mask, rollouts.outcomes[:, None] - sums[0] / sums[1].clamp(min=1e-8), 0.0)
    exact = groups.policy.exact_gradient
    assert float((groups.expected_gradient(advantages) - exact).norm() / exact.norm()) > 0.1


@pytest.mark.parametrize("rows", [0, 2])
def test_responses_without_a_single_token(rows: int) -> None:
    nothing = torch.zeros(rows, 0)
    rollouts = rr.Rollouts(
        nothing.long(), nothing.bool(), nothing, ["a"] * rows, log_probs=nothing, sum_pi_squared=nothing
    )
    for scale in ("none", "group_std", "batch_std"):
        assert rr.assign_credit(rollouts, rr.RRedCoTConfig(**OPTIONS, scale=scale)).advantages.shape == (rows, 0)
