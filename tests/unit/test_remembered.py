"""What calibration keeps of a step and what it leaves out, and what else must not depend on where a row stands."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.labelled_states import LabelledStates, sample_of_groups
from tests.unit.test_group_work import TABLE, bare_rows, in_parts


def states(outcomes: list[float]) -> tuple[LabelledStates, torch.Tensor]:
    """Four states in four folds; the second feature says how their trace ends."""
    outcome = torch.tensor(outcomes, dtype=torch.float64)
    features = torch.stack(
        [torch.zeros(4, dtype=torch.float64), torch.tensor([0.0, 1.0, 0.0, 1.0]).double()], dim=1
    )
    return LabelledStates(features, outcome, torch.ones(4).double(), torch.ones(4).double()), torch.arange(4)


def test_a_calibrator_remembers_the_steps_before() -> None:
    calibrator = OutcomeCalibrator(window=2)
    assert calibrator.calibrate(*states([0.0, 0.0, 0.0, 0.0])) is None, "nothing to learn from"
    first = calibrator.calibrate(*states([0.0, 1.0, 0.0, 1.0]))
    third = calibrator.calibrate(*states([0.0, 0.0, 0.0, 0.0]))
    assert first is not None and third is not None, "only a past step had outcomes that differ"
    assert float(third[1]) > float(third[0]) + 0.05
    for _ in range(2):
        last = calibrator.calibrate(*states([0.0, 0.0, 0.0, 0.0]))
    assert last is None, "it has left the window"


@pytest.mark.parametrize("calibrate", ["outcome", "trees"])
@pytest.mark.parametrize("baseline", ["value", "least_variance"])
def test_a_step_whose_traces_are_one_segment_each_has_the_groups_means(calibrate: str, baseline: str) -> None:
    """Such a step has no state to fit, even though the past has."""
    config = rr.RRedCoTConfig(segmenter="newline", baseline=baseline, calibrate=calibrate, scale="none")
    calibrator = config.build_calibrator()
    rows = bare_rows().read(TABLE)
    assign_credit(rows.rollouts, config, calibrator=calibrator)
    rewards = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    short = rr.Rollouts(
        torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1), rewards, ["a"] * 4,
        log_probs=-torch.ones(4, 1), texts=["1"] * 4, token_offsets=[[(0, 1)]] * 4,
    )  # fmt: skip
    credit = assign_credit(short, config, calibrator=calibrator)
    assert credit.metrics["rredcot/fallback/uncalibrated/mean"] == 1.0
    others = torch.tensor([2.0, 3.0, 2.0, 2.0]) / 3
    assert torch.allclose(credit.advantages, rewards - others[:, None])
    again = assign_credit(rows.rollouts, config, calibrator=calibrator)
    assert again.metrics["rredcot/fallback/uncalibrated/mean"] == 0.0, "and the next step goes on"


def test_every_trace_counts_once_however_many_segments_it_has() -> None:
    rows = bare_rows()
    config = rr.RRedCoTConfig(segmenter="newline", baseline="value")
    seen, plan, _ = in_parts(rows, config, 1)
    counts = seen.levels[-1].num_segments
    assert int(counts.max()) > int(counts[counts > 1].min()) > 1
    calibrator = config.build_calibrator()
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(specs))] for specs in plan.specs]
    probed = plan.probed(log_probs, length_normalize=False)
    assign_credit(rows.rollouts, config, segments=seen.levels[-1], probed=probed, calibrator=calibrator)
    (past,) = calibrator.state_dict()["weight"]
    each = past.split([int(count) - 1 for count in counts.tolist() if count > 1])
    assert torch.allclose(torch.stack([own.sum() for own in each]), torch.ones(len(each)).double())


def test_the_divisor_looks_at_the_baselines_and_not_at_the_values() -> None:
    """Baselines at the group's mean, values far from it: the divisor is the standard deviation, as in GRPO."""
    mask = torch.ones(4, 4, dtype=torch.bool)
    rewards = torch.zeros(4, 4)
    rewards[:, -1] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    rollouts = rr.Rollouts(
        torch.zeros(4, 4, dtype=torch.int64), mask, rewards, ["a"] * 4, log_probs=-torch.ones(4, 4)
    )
    config = rr.RRedCoTConfig(
        segmenter="fixed", segmenter_kwargs={"tokens": 2}, baseline="trace", calibrate="none"
    )
    values = torch.tensor([0.5, 40.0]).expand(4, 2)
    credit = assign_credit(rollouts, config, values=values)
    assert credit.baselines is not None
    deviation = float(torch.tensor([1.0, 1.0, 0.0, 0.0]).std())
    returns = torch.tensor([1.0, 1.0, 0.0, 0.0])[:, None]
    assert torch.allclose(credit.advantages[:, ::2], (returns - credit.baselines) / deviation, atol=1e-4)


def test_the_sample_of_groups_does_not_follow_the_order_of_the_rows() -> None:
    names = [f"group {i % 12}" for i in range(48)]
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1)).tolist()
    chosen = sample_of_groups(names, 5.0, 60)
    shuffled = sample_of_groups([names[i] for i in order], 5.0, 60)
    assert 0 < int(chosen.sum()) < 48
    assert shuffled.tolist() == [bool(chosen[i]) for i in order]
    assert {names[i] for i in chosen.nonzero()[:, 0].tolist()} != {f"group {i}" for i in range(3)}


@pytest.mark.parametrize("prior", [True, False])
def test_the_prompt_is_probed_where_its_value_is_not_the_groups(prior: bool) -> None:
    rows = bare_rows()
    _, plan, _ = in_parts(rows, rr.RRedCoTConfig(segmenter="newline", prior_from_group=prior), 1)
    states = {int(place[1]) for own in plan.places for place in own}
    prompts = [len(prompt) for prompt in rows.prompts]
    at_prompt = [any(spec[0] == prompts[row] for spec in specs) for row, specs in enumerate(plan.specs)]
    assert (0 in states) == (not prior)
    assert any(at_prompt) == (not prior)


def test_parts_know_the_lowest_outcome_of_the_others_of_each_row() -> None:
    """All rollouts earn −1, one −7. To all others an answer worth −1 tells something, to that one it does not, wherever
    the row stands in its part."""
    rows, lowest = bare_rows(), 13
    rewards = torch.zeros(rows.rollouts.rewards.shape)
    rewards[torch.arange(len(rewards)), torch.tensor(rows.lengths) - 1] = -1.0
    rewards[lowest, rows.lengths[lowest] - 1] = -7.0
    rows = dataclasses.replace(rows, rollouts=dataclasses.replace(rows.rollouts, rewards=rewards))
    config = rr.RRedCoTConfig(segmenter="newline", proposals="group")
    whole, parts = in_parts(rows, config, 1)[1], in_parts(rows, config, 3)[1]
    proposed = [len(places) > 0 for places in whole.places]
    assert not proposed[lowest] and sum(proposed) > 10
    assert parts.specs == whole.specs
