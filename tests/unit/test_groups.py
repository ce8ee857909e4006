"""Group statistics against verl's conventions and a slow reference."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rredcot_plugin.groups import group_stats


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3, width=32), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12)
)
def test_group_stats_equal_the_slow_reference(rows: list[tuple[float, str, bool]]) -> None:
    outcomes = torch.tensor([x for x, _, _ in rows])
    groups, valid = [g for _, g, _ in rows], torch.tensor([v for _, _, v in rows])
    stats = group_stats(outcomes, groups, valid)
    for i, (_, group, _) in enumerate(rows):
        members = [x for j, (x, g, v) in enumerate(rows) if g == group and v]
        others = [x for j, (x, g, v) in enumerate(rows) if g == group and v and j != i]
        alone = len(members) <= 1
        mean = 0.0 if alone else sum(members) / len(members)
        std = 1.0 if alone else float(torch.tensor(members, dtype=torch.float64).std())
        assert abs(float(stats.mean[i]) - mean) < 1e-5
        assert abs(float(stats.std[i]) - std) < 1e-5
        assert abs(float(stats.others_mean[i]) - (sum(others) / len(others) if others else 0.0)) < 1e-5


def test_small_spread_beside_a_large_mean_survives() -> None:
    stats = group_stats(torch.tensor([10_000.0, 10_000.01]), ["a", "a"], torch.tensor([True, True]))
    assert 0.005 < float(stats.std[0]) < 0.01
