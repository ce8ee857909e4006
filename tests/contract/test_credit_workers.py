"""A batch that Ray actors share has the same credit as one that the driver works on alone. Rows lie in a real
TransferQueue, from which actors read them and where they lay down their probes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

import rredcot_plugin as rr
from rredcot_plugin import choices
from rredcot_plugin.adapter.data_plane import DataPlane
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import credit_workers as module_of_workers
from rredcot_plugin.integrations.verl.batch import BatchSource
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers, modules_of
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.planning import setup
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.segmenters.newline import NewlineSegmenter
from rredcot_plugin.types import MASKED
from rredcot_plugin.values.confidence import ConfidenceEstimator
from tests.contract.cut_sessions import TURN
from tests.contract.workers_cluster import (
    cluster,  # noqa: F401  fixtures
    lay_down,
    lay_down_sessions,
    make_workers,
)
from tests.unit.test_group_work import bare_rows

OWN_SEGMENTER = """
import torch
from rredcot_plugin.types import Segments

class Halves:
    def __call__(self, rollouts):
        if rollouts.texts is None:
            raise ValueError("Halves: expected texts")
        if any("BAD" in text for text in rollouts.texts):
            raise ValueError("Halves: a text that it does not take")
        mask = rollouts.response_mask
        place, total = mask.cumsum(1), mask.sum(1, keepdim=True)
        ids = torch.where(mask, (place * 2 > total + 1).long(), -1)
        return Segments(ids, ids.amax(1) + 1)
"""


def credit_of(
    credit_workers: CreditWorkers,
    rows: PromptedRollouts,
    kill: int | None = None,
    when: str = "",
    source: DataPlane | None = None,
) -> rr.Credit:
    """Credit as the runner gives it where no token comes to the driver; an actor may be killed on the way. ``source`` has
    the rows if they lie in the queue already."""
    source = source or lay_down(rows)
    seen, plan = credit_workers.plan(source, rows.lengths)
    if when == "before the signals" and kill is not None:
        ray.kill(credit_workers.pool.actors[kill])
    numbers, held = credit_workers.read_signals(), credit_workers.rows
    if when == "after the signals" and kill is not None:
        ray.kill(credit_workers.pool.actors[kill])
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(places))] for places in plan.places]
    assert sum(map(len, log_probs)) == plan.size > 20
    if numbers is None:
        assert held is not None and held.rollouts.log_probs is not None
        rollouts = held.rollouts
    else:
        assert numbers.prefixes is not None and numbers.gradient_norm_proxy is not None
        mask = seen.levels[-1].segment_ids != MASKED
        rollouts = rr.Rollouts(None, mask, rows.rollouts.rewards, credit_workers.group_ids)
    return assign_credit(
        rollouts,
        credit_workers.config,
        segments=seen.levels[-1],
        coarse=seen.levels[0],
        probed=plan.probed(log_probs, length_normalize=False),
        states=numbers,
    )


def credit_by_itself(credit_workers: CreditWorkers, rows: PromptedRollouts) -> rr.Credit:
    """Without the workers' numbers: from rollouts with their tokens and signals."""
    source = lay_down(rows)
    seen, plan = credit_workers.plan(source, rows.lengths)
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(places))] for places in plan.places]
    rollouts = dataclasses.replace(source.rows().rollouts, **source.signals(max(rows.lengths)))
    probed = plan.probed(log_probs, length_normalize=False)
    return assign_credit(
        rollouts, credit_workers.config, segments=seen.levels[-1], coarse=seen.levels[0], probed=probed
    )


def assert_same(one: rr.Credit, other: rr.Credit) -> None:
    assert torch.equal(one.advantages, other.advantages)
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.segments.segment_ids, other.segments.segment_ids)
    assert one.metrics == other.metrics


@pytest.mark.parametrize("lam_coarse", [None, 0.9])
def test_actors_give_the_same_credit(cluster: None, lam_coarse: float | None) -> None:
    segmenter = "newline" if lam_coarse is None else "nested"
    options: dict[str, Any] = {"segmenter": segmenter, "lam_coarse": lam_coarse}
    alone, shared = (make_workers({**options, "credit_workers": workers}) for workers in (0, 3))
    for seed in range(2):  # the second step meets actors that know the first one
        rows = bare_rows(seed=seed)
        found = credit_of(shared, rows)
        assert_same(found, credit_of(alone, rows))
        assert_same(found, credit_by_itself(alone, rows))
    assert shared.processes == 3 and alone.processes == 0
    assert len(shared.pool.actors) == 3, "they stay for the next step"
    assert shared.encoder.answer_format == alone.encoder.answer_format


def test_the_plan_knows_when_the_crew_works() -> None:
    assert setup.SHARED_FROM == choices.AUTO_TOKENS
    assert Setup().credit_workers == choices.MOST_WORKERS


def test_one_group_needs_no_actor(cluster: None) -> None:
    credit_workers, rows = make_workers({"segmenter": "newline", "credit_workers": 3}), bare_rows(groups=1)
    credit_workers.plan(lay_down(rows), rows.lengths)
    assert not credit_workers.processes and not credit_workers.pool.actors


def test_auto_stays_in_the_driver_for_a_small_batch(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    credit_workers, rows = make_workers({"segmenter": "newline"}), bare_rows()
    source = lay_down(rows)
    credit_workers.plan(source, rows.lengths)
    assert not credit_workers.pool.actors
    monkeypatch.setattr(choices, "AUTO_TOKENS", 10)
    monkeypatch.setattr(module_of_workers.os, "sched_getaffinity", lambda _: range(6))
    credit_workers.plan(source, rows.lengths)
    assert len(credit_workers.pool.actors) == 3, "half as many as there are cores"


@pytest.mark.parametrize("baseline", ["auto", "trace", "value"])
def test_actors_share_sessions_of_several_outputs(cluster: None, baseline: str) -> None:
    options = {**TURN, "baseline": baseline}
    alone, shared = (make_workers({**options, "credit_workers": workers}) for workers in (0, 3))
    plane = lay_down_sessions()
    rows = plane.rows()
    assert {len(rows.outputs_of(row)) for row in range(len(rows.lengths))} == {1, 2, 3}
    found = credit_of(shared, rows, source=plane)
    assert_same(found, credit_of(alone, rows, source=plane))
    assert shared.processes == 3 and len(found.values.unique()) > 10


@pytest.mark.parametrize("when", ["before the step", "before the signals", "after the signals"])
def test_a_dead_actor_does_not_stop_the_run(cluster: None, when: str, caplog: pytest.LogCaptureFixture) -> None:
    alone, shared = (make_workers({"segmenter": "newline", "credit_workers": workers}) for workers in (0, 2))
    rows = bare_rows()
    shared.plan(lay_down(rows), rows.lengths)
    if when == "before the step":
        ray.kill(shared.pool.actors[1])
    assert_same(credit_of(shared, rows, 1, when), credit_of(alone, rows))
    assert ("credit_workers=2 failed" in caplog.text) == (when != "after the signals"), (
        "nothing is asked after those"
    )
    assert_same(credit_of(shared, rows), credit_of(alone, rows))
    assert "credit_workers=2 failed" in caplog.text


def test_actors_that_cannot_reach_the_rows_do_not_stop_the_run(
    cluster: None, caplog: pytest.LogCaptureFixture
) -> None:
    driver = os.getpid()

    class OnlyHere(BatchSource):
        def rows(self) -> PromptedRollouts:
            if os.getpid() != driver:
                raise RuntimeError("no route")
            return super().rows()

    rows = bare_rows()
    shared, alone = (make_workers({"segmenter": "newline", "credit_workers": workers}) for workers in (2, 0))
    source = lay_down(rows)
    _, plan = shared.plan(OnlyHere(source.keys, source.partition_id), rows.lengths)
    assert "credit_workers=2 failed" in caplog.text and "no route" in caplog.text
    assert not shared.processes and shared.rows is not None
    assert plan.specs == alone.plan(lay_down(rows), rows.lengths)[1].specs


class OwnSegmenter(NewlineSegmenter):
    """A user's, which a level may name."""


class OwnEstimator(ConfidenceEstimator):
    """A user's, which a mixture may name."""


@pytest.mark.parametrize(
    "options",
    [
        {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", f"{__name__}:OwnSegmenter"]}},
        {"value_estimator": "mixture", "value_kwargs": {"estimators": ["support", f"{__name__}:OwnEstimator"]}},
    ],
)
def test_actors_import_what_registers_the_parts_of_a_whole(options: dict[str, Any]) -> None:
    """They look the parts up by name too, in a process that has imported nothing of the user's."""
    assert __name__ in modules_of(rr.RRedCoTConfig.from_mapping(options))


def test_a_segmenter_of_the_users_own_runs_in_actors_and_says_what_is_wrong(cluster: None, tmp_path: Path) -> None:
    path = tmp_path / "halves.py"
    path.write_text(OWN_SEGMENTER)
    options = {"segmenter": {"path": str(path), "name": "Halves"}}
    alone, shared = (make_workers({**options, "credit_workers": workers}) for workers in (0, 2))
    rows = bare_rows()
    assert_same(credit_of(shared, rows), credit_of(alone, rows))
    path.write_text(OWN_SEGMENTER.replace("BAD", "="))
    broken = make_workers({**options, "credit_workers": 2})
    with pytest.raises(ValueError, match="a text that it does not take"):
        broken.plan(lay_down(rows), rows.lengths)
    path.write_text(OWN_SEGMENTER.replace("torch.where(mask,", "torch.where(mask & (place > 1),"))
    leaves_one_out = make_workers({**options, "credit_workers": 2})
    with pytest.raises(ValueError, match=r"segments of rollout \d+: .* 1 unmasked tokens without"):
        leaves_one_out.plan(lay_down(rows), rows.lengths)
