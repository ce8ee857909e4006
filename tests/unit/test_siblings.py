"""Evidence from siblings against a slow reference that compares tokens one by one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats
from rredcot_plugin.values.prefix_numbers import prefix_numbers
from rredcot_plugin.values.siblings import NAMES, sibling_features


def two_letters(seed: int, B: int = 12, T: int = 9) -> rr.Rollouts:
    """Traces over two tokens in groups of different size, so that segments and prefixes do meet; some tokens masked."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 2, (B, T), generator=g)
    mask = torch.rand(B, T, generator=g) > 0.15
    rewards = torch.zeros(B, T)
    rewards[:, 0] = torch.rand(B, generator=g)
    mask[:, 0] = True
    return rr.Rollouts(tokens, mask, rewards, [0, 0, 0, "b", "b", 7, 7, 7, 7, 7, 7, "alone"])


def found_for(rollouts: rr.Rollouts, segments: rr.Segments, valid: torch.Tensor) -> torch.Tensor:
    stats = group_stats(rollouts.outcomes, rollouts.group_ids, valid)
    prefixes = prefix_numbers(rollouts, segments)
    columns = sibling_features(prefixes, segments, stats.index, rollouts.outcomes, stats.others_mean, valid)
    return torch.stack(columns, dim=2)


def pieces_of(rollouts: rr.Rollouts, segments: rr.Segments, row: int) -> list[list[int]]:
    ids = segments.segment_ids[row].tolist()
    count = int(segments.num_segments[row])
    return [
        [t for t, i in zip(rollouts.token_ids[row].tolist(), ids, strict=True) if i == k] for k in range(count)
    ]


def told_before(rollouts: rr.Rollouts, segments: rr.Segments, row: int) -> list[list[int]]:
    """All tokens before each state, masked ones too."""
    starts = segments.starts[row, : int(segments.num_segments[row])].tolist()
    return [rollouts.token_ids[row, starts[0] : start].tolist() for start in starts]


def slow(rollouts: rr.Rollouts, segments: rr.Segments, valid: torch.Tensor) -> dict[tuple[int, int], list[float]]:
    pieces = [pieces_of(rollouts, segments, row) for row in range(rollouts.batch_size)]
    told = [told_before(rollouts, segments, row) for row in range(rollouts.batch_size)]
    outcomes = rollouts.outcomes.tolist()
    found = {}
    for row, own in enumerate(pieces):
        others = [
            other
            for other in range(rollouts.batch_size)
            if other != row and rollouts.group_ids[other] == rollouts.group_ids[row] and valid[other]
        ]
        prior = sum(outcomes[other] for other in others) / max(1, len(others))
        for k in range(len(own)):
            same = [outcomes[other] for other in others if k and own[k - 1] in pieces[other]]
            path = [outcomes[other] for other in others if told[row][k] in told[other]]
            found[row, k] = [
                math.log1p(sum(same)),
                math.log1p(len(same) - sum(same)),
                (sum(path) + prior) / (len(path) + 1),
                math.log1p(len(path)),
            ]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_as_a_slow_reference_finds_them(seed: int) -> None:
    rollouts = two_letters(seed)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    valid = torch.ones(rollouts.batch_size, dtype=torch.bool)
    valid[[2, 6]] = False
    got, expected = found_for(rollouts, segments, valid), slow(rollouts, segments, valid)
    for (row, k), numbers in expected.items():
        assert got[row, k].tolist() == pytest.approx(numbers, abs=1e-6), (row, k, NAMES)
    assert float(got[:5, 1:, 0].max()) > 0, "some segments were shared"
    assert (got[11, :, [0, 1, 3]] == 0).all(), "alone in its group"


def test_the_own_outcome_changes_the_siblings_features_only() -> None:
    rollouts, everyone = two_letters(0), torch.ones(12, dtype=torch.bool)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    rewards = rollouts.rewards.clone()
    rewards[0, 0] += 1.0
    before = found_for(rollouts, segments, everyone)
    after = found_for(dataclasses.replace(rollouts, rewards=rewards), segments, everyone)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1:3], after[1:3])
    assert torch.equal(before[3:], after[3:]), "another group's"


def test_padding_and_the_order_of_rows_change_nothing() -> None:
    rollouts, everyone = two_letters(3), torch.ones(12, dtype=torch.bool)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    plain = found_for(rollouts, segments, everyone)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    pad = torch.nn.functional.pad
    moved = rr.Rollouts(
        pad(rollouts.token_ids, (3, 2), value=1)[order],
        pad(rollouts.response_mask, (3, 2))[order],
        pad(rollouts.rewards, (3, 2))[order],
        [rollouts.group_ids[i] for i in order.tolist()],
    )
    found = found_for(moved, rr.get_segmenter("fixed", tokens=2)(moved), everyone)
    exists = segments.exists[order]
    assert torch.equal(found[exists], plain[order][exists])


def test_the_same_words_after_another_answer_of_a_tool_are_another_state() -> None:
    tokens = torch.tensor([[5, 1, 6], [5, 2, 6], [5, 1, 7], [5, 2, 7]])
    mask = torch.tensor([[True, False, True]] * 4)
    rewards = torch.zeros(4, 3)
    rewards[:, 2] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    rollouts = rr.Rollouts(tokens, mask, rewards, [0] * 4)
    found = found_for(rollouts, rr.get_segmenter("turn")(rollouts), torch.ones(4, dtype=torch.bool))
    shared = dict(zip(NAMES, found[:, 1].T, strict=True))
    assert torch.allclose(shared["prefix_shared_count"], torch.tensor(2.0).log()), "one sibling was answered so"
    means = torch.tensor([2 / 3, 1 / 3, 2 / 3, 1 / 3])
    assert torch.allclose(shared["prefix_shared_mean"], means)
    assert torch.allclose(shared["segment_shared_rewarded"].exp() - 1, torch.tensor([1.0, 2.0, 1.0, 2.0])), (
        "of all three"
    )


def test_an_empty_response_and_an_empty_batch() -> None:
    rollouts = two_letters(1)
    mask = rollouts.response_mask.clone()
    mask[0] = False
    rollouts = dataclasses.replace(rollouts, response_mask=mask)
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    found = found_for(rollouts, segments, torch.ones(12, dtype=torch.bool))
    assert torch.isfinite(found).all()
    assert (found[0] == 0).all()
    none = rr.Rollouts(torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, 4), torch.zeros(0, 4), [])
    empty = found_for(none, rr.get_segmenter("fixed", tokens=2)(none), torch.ones(0, dtype=torch.bool))
    assert empty.shape[0] == 0
