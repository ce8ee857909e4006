"""What is left out of a tracker, what fails in one, and when the runner hands numbers over."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import Tracking

import rredcot_plugin as rr
from rredcot_plugin.adapter.dump import Dumper
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.tracker_payload import (
    credit_numbers,
    histogram,
    histograms,
    worst_samples,
)
from rredcot_plugin.integrations.verl.tracking import TABLE, WRITERS, CreditTracker
from rredcot_plugin.report.traces import read_dumps
from tests.contract.tracked_batches import Batch, batch, take
from tests.unit.reference import text_rollouts


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    given = batch(9)
    values, deltas = given.credit.values.clone(), given.credit.deltas.clone()
    values[0, 1], deltas[1, 1], deltas[2, 2] = torch.nan, torch.inf, torch.nan
    broken = dataclasses.replace(given.credit, values=values, deltas=deltas)
    drawn, dropped = histograms([credit_numbers(broken)])
    assert dropped == 3
    assert all(np.isfinite(found.edges).all() for found in drawn.values())
    assert (
        drawn["rredcot/credit/histogram"].counts.sum()
        == len(credit_numbers(broken)["rredcot/credit/histogram"]) - 2
    )
    assert all(np.isfinite(s.credit) for s in worst_samples(given.shown(credit=broken)))
    nothing = dataclasses.replace(broken, values=values * torch.nan, deltas=deltas * torch.nan)
    assert "rredcot/credit/histogram" not in histograms([credit_numbers(nothing)])[0]
    assert worst_samples(given.shown(credit=nothing)) == []


@pytest.mark.parametrize("texts", [[], [""], ["", "a"]])
def test_empty_batches_and_empty_responses(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = (
        text_rollouts(texts)
        if texts
        else rr.Rollouts(
            torch.zeros(0, 0, dtype=torch.int64),
            torch.zeros(0, 0).bool(),
            torch.zeros(0, 0),
            [],
            texts=[],
            token_offsets=[],
        )
    )
    segments = (
        rr.get_segmenter("newline")(rollouts) if texts else rr.Segments(rollouts.token_ids, torch.zeros(0).long())
    )
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="newline"), segments=segments)
    rows = PromptedRollouts(
        rollouts, [torch.zeros(0, dtype=torch.int64)] * len(texts), [""] * len(texts), [0] * len(texts)
    )
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    tracking = Tracking("project", "run", ["tensorboard"])
    take(CreditTracker(every=1), tracking, 1, 0, Batch(rows, rollouts, credit))
    tracking.finish()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert (f"{TABLE}/text_summary" in found.Tags()["tensors"]) == ("a" in texts)
    assert ("rredcot/segments/per_trace/histogram" in found.Tags()["histograms"]) == bool(texts)


@pytest.mark.parametrize("values", [[0.5] * 9, [1e30, -1e30], [3e38, 3e38], [1e9, 1e9 + 1e-3], [1e-40, 2e-40]])
@pytest.mark.parametrize("whole", [False, True])
def test_a_histogram_of_any_finite_numbers(values: list[float], whole: bool) -> None:
    drawn = histogram(np.array(values), whole)
    assert drawn.counts.sum() == len(values)
    assert (np.diff(drawn.edges) > 0).all()


class FullDisk:
    """Stands for a SummaryWriter whose disk is full."""

    def add_histogram_raw(self, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")


def test_a_backend_that_fails_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    import wandb

    assert wandb.run is None
    tracking = SimpleNamespace(logger={"tensorboard": SimpleNamespace(writer=FullDisk()), "wandb": wandb})
    tracker = CreditTracker(every=1)
    for step in (1, 2):
        take(tracker, tracking, step, 0, batch(step))
    messages = [record.getMessage() for record in caplog.records if "no histograms in" in record.getMessage()]
    assert len(messages) == 2
    assert "tensorboard" in messages[0] and "No space left" in messages[0]
    assert "wandb" in messages[1] and "wandb.init" in messages[1]


class Untouched(dict):
    """The trackers of a run that has none of ours: reading their names is all that is done."""

    def __getitem__(self, key: object) -> Any:
        raise AssertionError(f"{key} was used")


def test_other_trackers_get_nothing_and_no_step_is_written_with_0() -> None:
    tracker, never = CreditTracker(every=1), CreditTracker(every=0)
    take(tracker, SimpleNamespace(logger=Untouched(console=1, file=2, mlflow=3)), 1, 0, batch(1))
    take(never, SimpleNamespace(logger=Untouched(tensorboard=1, wandb=2)), 1, 0, batch(1))


def test_the_runner_hands_over_what_the_update_gets_and_changes_nothing(tmp_path: Path) -> None:
    given = batch(1)
    before = given.credit.advantages.clone(), torch.random.get_rng_state(), np.random.get_state()[1].copy()
    seen: list[tuple] = []
    runner = SimpleNamespace(
        settings=rr.RRedCoTConfig(dump_every=2),
        trainer=SimpleNamespace(global_steps=4, local_trigger_step=1, logger="verl's"),
        _dumper=Dumper(tmp_path, 1024, 2),
        _tracker=SimpleNamespace(take=lambda *parts: seen.append(parts)),
    )
    CreditRunner._show(runner, given.shown())  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["4.1.jsonl"]
    assert [trace.segments for trace in read_dumps(tmp_path)] == [trace.segments for trace in given.traces()]
    assert seen[0][:3] == ("verl's", 4, 1)
    worst_samples(given.shown())
    histograms([credit_numbers(given.credit)])
    assert torch.equal(given.credit.advantages, before[0])
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()


def test_where_verl_keeps_its_trackers_and_when_it_logs() -> None:
    fit = inspect.getsource(PPOTrainer.fit)
    assert "self.logger = Tracking(" in fit
    step, log = fit.index("batch = self.step("), fit.index("self.logger.log(data=metrics, step=self.global_steps)")
    assert fit.index("self.logger = Tracking(") < step < log < fit.index("self.global_steps += 1", step)
    assert set(WRITERS) <= set(Tracking.supported_backend)


def test_the_mini_batches_of_a_step_are_counted() -> None:
    source = inspect.getsource(PPOTrainer.step)
    assert "for trigger_idx in range(self.parameter_sync_step):" in source
    assert source.index("self.local_trigger_step = trigger_idx") < source.index("self._step_once(")
    start = inspect.getsource(PPOTrainer.__init__)
    assert "self.parameter_sync_step = " in start
    assert "self.local_trigger_step = 0" in start
