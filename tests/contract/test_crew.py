"""A batch that Ray actors share has the same credit as one that the driver works on alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

import rredcot_plugin as rr
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl import crew as crew_module
from rredcot_plugin.integrations.verl.crew import Crew
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.planning import driver
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.rows import StepRows
from tests.unit.test_shards import TABLE, TOKENIZER, bare_rows

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=10**8, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def make_crew(options: dict[str, Any]) -> Crew:
    config = rr.RRedCoTConfig.from_mapping(options)
    return Crew(config, TABLE, ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens))


def credit_of(crew: Crew, rows: StepRows, kill: int | None = None) -> rr.Credit:
    """Credit as the runner gives it; an actor may be killed between the halves of the step."""
    levels, plan = crew.plan(rows)
    if kill is not None:
        ray.kill(crew._members[kill])
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(specs))] for specs in plan.specs]
    assert sum(map(len, log_probs)) > 20
    return assign_credit(
        rows.rollouts,
        crew.config,
        segments=levels[-1],
        coarse=levels[0],
        probed=plan.probed(log_probs, length_normalize=False),
        features=crew.features,
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
    alone, shared = (make_crew({**options, "credit_workers": workers}) for workers in (0, 3))
    for seed in range(2):  # the second step meets actors that know the first one
        rows = bare_rows(seed=seed)
        assert_same(credit_of(shared, rows), credit_of(alone, rows))
    assert shared.processes == 3 and alone.processes == 0
    assert len(shared._members) == 3, "they stay for the next step"
    assert shared.encoder.answer_format == alone.encoder.answer_format


def test_the_plan_knows_when_the_crew_works() -> None:
    assert driver.SHARED_FROM == crew_module.AUTO_TOKENS
    assert Setup().credit_workers == crew_module.MOST_WORKERS


def test_one_group_needs_no_actor(cluster: None) -> None:
    crew = make_crew({"segmenter": "newline", "credit_workers": 3})
    crew.plan(bare_rows(groups=1))
    assert not crew.processes and not crew._members


def test_auto_stays_in_the_driver_for_a_small_batch(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = make_crew({"segmenter": "newline"})
    crew.plan(bare_rows())
    assert not crew._members
    monkeypatch.setattr(crew_module, "AUTO_TOKENS", 10)
    monkeypatch.setattr(crew_module.os, "sched_getaffinity", lambda _: range(6))
    crew.plan(bare_rows())
    assert len(crew._members) == 3, "half as many as there are cores"


@pytest.mark.parametrize("between", [False, True], ids=["before a step", "between its halves"])
def test_a_dead_actor_does_not_stop_the_run(
    cluster: None, between: bool, caplog: pytest.LogCaptureFixture
) -> None:
    alone, shared = (make_crew({"segmenter": "newline", "credit_workers": workers}) for workers in (0, 2))
    rows = bare_rows()
    shared.plan(rows)
    if not between:
        ray.kill(shared._members[1])
    assert_same(credit_of(shared, rows, kill=1 if between else None), credit_of(alone, rows))
    assert "credit_workers=2 died" in caplog.text
    assert_same(credit_of(shared, rows), credit_of(alone, rows))


def test_a_segmenter_of_the_users_own_runs_in_actors_and_says_what_is_wrong(cluster: None, tmp_path: Path) -> None:
    path = tmp_path / "halves.py"
    path.write_text(OWN_SEGMENTER)
    options = {"segmenter": {"path": str(path), "name": "Halves"}}
    alone, shared = (make_crew({**options, "credit_workers": workers}) for workers in (0, 2))
    rows = bare_rows()
    assert_same(credit_of(shared, rows), credit_of(alone, rows))
    path.write_text(OWN_SEGMENTER.replace("BAD", "="))
    broken = make_crew({**options, "credit_workers": 2})
    with pytest.raises(ValueError, match="a text that it does not take"):
        broken.plan(rows)


@pytest.mark.parametrize("workers", [0, 2])
def test_estimators_of_users_find_texts(cluster: None, tmp_path: Path, workers: int) -> None:
    """Those of rredcot read none, so with actors the driver reads none for them."""
    path = tmp_path / "own.py"
    path.write_text("class Own:\n    proposes = 'nothing'\n")
    rows = bare_rows()
    own = make_crew({"value_estimator": {"path": str(path), "name": "Own"}, "credit_workers": workers})
    own.plan(rows)
    texts = own.with_texts(rows).rollouts.texts
    assert texts == rows.read(TABLE).rollouts.texts
    shipped = make_crew({"segmenter": "newline", "credit_workers": workers})
    shipped.plan(rows)
    assert (shipped.with_texts(rows).rollouts.texts is None) == (workers > 0)
