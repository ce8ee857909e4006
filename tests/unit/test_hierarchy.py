"""Nested segments: every level sums to the reward; the segmenter keeps coarse boundaries before fine ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.credit import hierarchy
from tests.unit.reference import gae_reference, random_values


def partition(mask: torch.Tensor, cuts: torch.Tensor) -> rr.Segments:
    """A segment begins at each unmasked token where ``cuts`` is true, and at the first one."""
    seen = mask.cumsum(1)
    ids = ((cuts & mask) & (seen > 1)).cumsum(1)
    return rr.Segments(torch.where(mask, ids, -1), torch.where(mask.any(1), ids.amax(1) + 1, 0))


def segments_of(*rows: list[int]) -> rr.Segments:
    ids = torch.tensor(rows)
    return rr.Segments(ids, ids.amax(1) + 1)


@st.composite
def nested_levels(draw: st.DrawFn) -> list[rr.Segments]:
    """Three levels, coarse to fine, over ragged rows with masked tokens; some rows are empty."""
    B, T = draw(st.integers(1, 5)), draw(st.integers(1, 16))
    seed, dense = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.1, 0.5, 0.9]))
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=random) < torch.rand(B, 1, generator=random).round(decimals=1)
    levels, cuts = [], torch.ones(B, T, dtype=torch.bool)
    for _ in range(3):
        cuts = cuts & (torch.rand(B, T, generator=random) < dense)
        levels.append(partition(mask, cuts))
    return levels[::-1]


def permuted(segments: rr.Segments, order: torch.Tensor) -> rr.Segments:
    return rr.Segments(segments.segment_ids[order], segments.num_segments[order])


TURNS = segments_of([0, 0, 0, -1, 1, 1], [0, 0, 1, 1, 2, -1], [-1] * 6)


STEPS = segments_of([0, 1, 1, -1, 2, 3], [0, 1, 2, 2, 3, -1], [-1] * 6)


def test_golden() -> None:
    assert hierarchy.parents(STEPS, TURNS).tolist() == [[0, 0, 1, 1], [0, 0, 1, 2], [-1] * 4]
    credit = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0], [9.0] * 4])
    rolled = hierarchy.roll_up(credit, STEPS, TURNS)
    assert rolled.tolist() == [[3.0, 12.0, 0.0], [3.0, 4.0, 8.0], [0.0, 0.0, 0.0]]


@settings(deadline=None)
@given(nested_levels(), st.integers(0, 99))
def test_every_level_sums_to_the_reward(levels: list[rr.Segments], seed: int) -> None:
    segments = levels[-1]
    rewards = torch.where(segments.exists, random_values(segments, seed), torch.nan)  # padding must not matter
    outcome, fine = rewards.nansum(1), segments
    for level in reversed(levels):
        rewards, fine = hierarchy.roll_up(rewards, fine, level), level
        assert rewards.shape == level.exists.shape
        assert torch.allclose(rewards.sum(1), outcome, atol=1e-5)
        assert (rewards[~level.exists] == 0).all()


def hierarchical_gae_reference(deltas: list[float], parent: list[int], lam_fine: float, lam_coarse: float) -> list:
    """Â_i = Σ_{l≥0, i+l in j} λ_f^l δ_{i+l} + Σ_{m≥1} λ_c^m Δ_{j+m}, term by term."""
    found = []
    for i, j in enumerate(parent):
        inside = sum(lam_fine ** (k - i) * d for k, d in enumerate(deltas) if k >= i and parent[k] == j)
        behind = sum(lam_coarse ** (parent[k] - j) * d for k, d in enumerate(deltas) if parent[k] > j)
        found.append(inside + behind)
    return found


@settings(deadline=None)
@given(nested_levels(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_hierarchical_gae_is_its_formula(
    levels: list[rr.Segments], lam_fine: float, lam_coarse: float, seed: int
) -> None:
    _, coarse, fine = levels
    deltas = torch.where(fine.exists, random_values(fine, seed), torch.nan)
    found = hierarchy.hierarchical_gae(deltas, fine, coarse, lam_fine, lam_coarse)
    parent = hierarchy.parents(fine, coarse)
    for row, count in enumerate(fine.num_segments.tolist()):
        expected = hierarchical_gae_reference(
            deltas[row, :count].tolist(), parent[row, :count].tolist(), lam_fine, lam_coarse
        )
        assert found[row].tolist() == pytest.approx(expected + [0.0] * (fine.max_segments - count), abs=1e-4)


@settings(deadline=None)
@given(nested_levels(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_hierarchical_gae_contains_segment_gae(
    levels: list[rr.Segments], lam: float, other: float, seed: int
) -> None:
    _, coarse, fine = levels
    mask = fine.segment_ids >= 0
    whole = partition(mask, torch.zeros_like(mask))
    values, outcome = random_values(fine, seed), torch.arange(len(mask)).float()
    deltas = rr.redistribute(values, outcome, fine.num_segments)
    plain = rr.segment_gae(deltas, fine.num_segments, lam)
    assert torch.allclose(hierarchy.hierarchical_gae(deltas, fine, whole, lam, other), plain, atol=1e-5)
    assert torch.allclose(hierarchy.hierarchical_gae(deltas, fine, fine, other, lam), plain, atol=1e-5)
    to_go = torch.where(fine.exists, outcome[:, None] - values, 0.0)
    assert torch.allclose(hierarchy.hierarchical_gae(deltas, fine, coarse, 1.0, 1.0), to_go, atol=1e-5)
    assert torch.equal(hierarchy.hierarchical_gae(deltas, fine, coarse, 0.0, 0.0), deltas)


def test_a_long_turn_hears_the_next_one() -> None:
    steps = segments_of(list(range(22)))
    turns = segments_of([0] * 21 + [1])
    deltas = torch.zeros(1, 22)
    deltas[0, -1] = 1.0
    assert hierarchy.hierarchical_gae(deltas, steps, turns, 0.9, 1.0)[0, 0] == 1.0
    assert rr.segment_gae(deltas, steps.num_segments, 0.9)[0, 0] == pytest.approx(
        gae_reference([0.0] * 21 + [1.0], 0.9)[0]
    )


@settings(deadline=None)
@given(nested_levels(), st.integers(0, 99))
def test_permuting_rows_permutes(levels: list[rr.Segments], seed: int) -> None:
    _, coarse, fine = levels
    order = torch.randperm(len(fine.num_segments), generator=torch.Generator().manual_seed(seed))
    fine_p, coarse_p = permuted(fine, order), permuted(coarse, order)
    f = random_values(fine, seed)
    for found, again in (
        (hierarchy.parents(fine, coarse), hierarchy.parents(fine_p, coarse_p)),
        (hierarchy.roll_up(f, fine, coarse), hierarchy.roll_up(f[order], fine_p, coarse_p)),
        (
            hierarchy.hierarchical_gae(f, fine, coarse, 0.5, 0.9),
            hierarchy.hierarchical_gae(f[order], fine_p, coarse_p, 0.5, 0.9),
        ),
    ):
        assert torch.equal(found[order], again)


def test_what_does_not_fit_is_refused() -> None:
    crossing = segments_of([0, 1, 1, -1, 1, 2], [0, 1, 2, 2, 3, -1], [-1] * 6)
    with pytest.raises(ValueError, match=r"row 0: .* fine segment 1 in coarse segments 0 to 1"):
        hierarchy.parents(crossing, TURNS)
    with pytest.raises(ValueError, match=r"row 1: .* fine segment 0 in coarse segments 0 to 1"):
        hierarchy.parents(permuted(TURNS, torch.tensor([2, 1])), permuted(STEPS, torch.tensor([2, 1])))
    other = segments_of([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, -1], [-1] * 6)
    with pytest.raises(ValueError, match=r"row 0, column 3: .* coarse segment only"):
        hierarchy.parents(STEPS, other)
    with pytest.raises(ValueError, match=r"row 0, column 3: .* fine segment only"):
        hierarchy.parents(other, TURNS)
    with pytest.raises(ValueError, match=r"coarse\.segment_ids: expected shape"):
        hierarchy.parents(STEPS, segments_of([0]))
    with pytest.raises(ValueError, match="per_segment: expected shape"):
        hierarchy.roll_up(torch.zeros(3, 3), STEPS, TURNS)
    with pytest.raises(ValueError, match="deltas: expected shape"):
        hierarchy.hierarchical_gae(torch.zeros(3, 3), STEPS, TURNS, 1.0, 1.0)
    for bad in ({"lam_fine": 1.5, "lam_coarse": 1.0}, {"lam_fine": 1.0, "lam_coarse": -0.5}):
        with pytest.raises(ValueError, match=r"lam_(fine=1.5|coarse=-0.5)"):
            hierarchy.hierarchical_gae(torch.zeros(3, 4), STEPS, TURNS, **bad)
