"""Calibration's window counts the age of a rollout by the version of the policy that wrote it, where that is told."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.window import LEAST_ROLLOUTS, LEAST_STEPS, ages, mean_age, within
from tests.unit.test_group_work import TABLE, bare_rows

ROOM = 1 << 14


def batch(versions: Sequence[float], mark: float = 0.0, states: int = 2) -> LabelledStates:
    """Rollouts of these versions, with ``states`` states each; ``mark`` is the feature of all of them."""
    each = torch.tensor(versions, dtype=torch.float64).repeat_interleave(states)
    weight = torch.full_like(each, 1 / states)
    outcome = (torch.arange(len(each)) % 2).double()
    return LabelledStates(torch.full((len(each), 1), mark), outcome, weight, torch.ones_like(weight), version=each)


def held(steps: Sequence[LabelledStates]) -> list[tuple[float, float]]:
    """(mark, version) of every rollout that is left."""
    return [
        (float(step.features[i, 0]), float(step.version[i]))
        for step in steps
        for i in range(0, len(step.weight), 2)
    ]


def by_arrival(sizes: Sequence[int], window: int | None) -> int:
    """The rule of a window whose batches come one a version: how many of them stay."""
    left = list(sizes)
    while left and (
        len(left) > window if window is not None else len(left) > LEAST_STEPS and sum(left[1:]) >= LEAST_ROLLOUTS
    ):
        left = left[1:]
    return len(left)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 200), min_size=0, max_size=14), st.one_of(st.none(), st.integers(0, 6)), st.booleans()
)
def test_one_batch_a_version_is_the_window_of_arrivals(sizes: list[int], window: int | None, told: bool) -> None:
    sizes = [size for size in sizes if size or not told]  # an empty batch tells no version
    steps: list[LabelledStates] = []
    for number, size in enumerate(sizes):
        steps = within([*steps, batch([7.0 + number if told else math.nan] * size, number)], window, ROOM)
    stay = len(sizes) - by_arrival(sizes, window)
    assert [mark for mark, _ in held(steps)] == [
        number for number in range(stay, len(sizes)) for _ in range(sizes[number])
    ]


def test_a_rollout_leaves_with_its_version_whenever_it_came() -> None:
    steps = within([batch([8, 5, 6], mark=0), batch([7, 9, 5], mark=1)], 3, ROOM)
    assert held(steps) == [(0, 8), (1, 7), (1, 9)]
    assert [own.tolist() for own in ages(steps)] == [[1, 1], [2, 2, 0, 0]]
    assert mean_age(steps) == 1.0
    assert held(within([*steps, batch([10], mark=2)], 3, ROOM)) == [(0, 8), (1, 9), (2, 10)]


def test_a_late_batch_of_an_old_version_does_not_drive_out_newer_ones() -> None:
    steps = [batch([9], mark=0), batch([6], mark=1), batch([7], mark=2), batch([7], mark=3)]
    assert held(within(steps, 1, ROOM)) == [(0, 9)]
    assert held(within(steps, 3, ROOM)) == [(0, 9), (2, 7), (3, 7)]


def test_batches_of_one_version_are_one_step_and_share_its_room() -> None:
    steps = [batch([4] * 10, mark=0), *(batch([5] * 10, mark=mark) for mark in (1, 2, 3))]
    assert {mark for mark, _ in held(within(steps, 1, ROOM))} == {1, 2, 3}
    assert {mark for mark, _ in held(within(steps, 2, 40))} == {0, 2, 3}, "40 states are two batches"
    assert {mark for mark, _ in held(within(steps, 2, 1))} == {0, 3}, "the last to come is never without room"


def test_a_version_that_never_changes_does_not_let_the_window_grow() -> None:
    calibrator = OutcomeCalibrator(window=4, max_states=100)
    for _ in range(50):
        calibrator.remember(batch([3] * 10))
    assert sum(len(own) for own in calibrator.state_dict()["version"]) == 100


def test_untold_rollouts_are_as_old_as_their_arrival() -> None:
    steps = [batch([math.nan], 0), batch([math.nan, 3], 1), batch([4, math.nan], 2)]
    assert [own[::2].tolist() for own in ages(steps)] == [[2], [1, 1], [0, 0]]
    assert [mark for mark, _ in held(within(steps, 2, ROOM))] == [1, 1, 2, 2]
    assert mean_age([]) == 0.0 == mean_age([batch([])])


def test_a_checkpoint_keeps_versions_and_one_without_them_counts_arrivals() -> None:
    calibrator, resumed = OutcomeCalibrator(window=3), OutcomeCalibrator(window=3)
    for mark, versions in enumerate(([2, 4], [4, 3], [5, 5])):
        calibrator.remember(batch(versions, mark))
    resumed.load_state_dict(calibrator.state_dict())
    for one in (calibrator, resumed):
        one.remember(batch([6], 3))
    kept = resumed.state_dict()["version"]
    assert [own[::2].tolist() for own in kept] == [[4], [4], [5, 5], [6]]
    assert all(map(torch.equal, kept, calibrator.state_dict()["version"]))
    before = {name: own for name, own in calibrator.state_dict().items() if name != "version"}
    resumed.load_state_dict(before)
    assert len(resumed.state_dict()["outcome"]) == 3, "four batches came"
    resumed.remember(batch([7], 4))
    assert [len(own) for own in resumed.state_dict()["outcome"]] == [4, 2, 2]


def credit_after(versions: torch.Tensor | None, options: dict) -> rr.Credit:
    """Of the third batch, the first two having been of these versions and of 9."""
    config = rr.RRedCoTConfig(segmenter="newline", calibrate_window=2, **options)
    calibrator = config.build_calibrator()
    for seed, told in enumerate((versions, None if versions is None else torch.full((20,), 9.0))):
        rows = bare_rows(seed=seed).read(TABLE).rollouts
        assign_credit(dataclasses.replace(rows, versions=told), config, calibrator=calibrator)
    last = dataclasses.replace(
        bare_rows(seed=2).read(TABLE).rollouts, versions=None if versions is None else torch.full((20,), 10.0)
    )
    return assign_credit(last, config, calibrator=calibrator)


@pytest.mark.parametrize("options", [{}, {"calibrate": "trees"}, {"calibrate": "group_shift"}])
def test_versions_reach_the_fit_and_its_metric(options: dict) -> None:
    untold, fresh = credit_after(None, options), credit_after(torch.full((20,), 8.0), options)
    assert torch.equal(untold.advantages, fresh.advantages)
    assert untold.metrics == fresh.metrics
    assert 0.5 < fresh.metrics["rredcot/value/window_age/mean"] < 1.5
    late = torch.where(torch.arange(20) < 10, 8.0, 3.0)
    stale = credit_after(late, options)
    assert not torch.allclose(stale.advantages, fresh.advantages, atol=1e-4)
    assert stale.metrics["rredcot/value/window_age/mean"] < fresh.metrics["rredcot/value/window_age/mean"]


def test_versions_that_do_not_fit_are_refused_and_rows_take_theirs_along() -> None:
    rollouts = bare_rows().rollouts
    with pytest.raises(ValueError, match=r"versions: expected shape \(20,\), got \(3,\)"):
        dataclasses.replace(rollouts, versions=torch.zeros(3))
    told = dataclasses.replace(rollouts, versions=torch.arange(20.0))
    assert told.take([5, 2]).versions.tolist() == [5.0, 2.0]
