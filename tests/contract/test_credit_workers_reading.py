"""What the driver and its workers read of the rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue as tq

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batch import BatchSource
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.probes.layout import unpack
from tests.contract.test_verl_options import verl_config
from tests.contract.workers_cluster import (
    cluster,  # noqa: F401  fixtures
    lay_down,
    make_workers,
)
from tests.unit.test_group_work import TABLE, TOKENIZER, bare_rows


def probes_of(source: BatchSource) -> list[list[Any]]:
    """What the engine would find."""
    data = tq.kv_batch_get(
        keys=source.keys, partition_id=source.partition_id, select_fields=[transfer_fields.PROBES]
    )
    return [unpack(vector) for vector in data[transfer_fields.PROBES].unbind()]


@pytest.mark.parametrize("delivers", [True, False])
def test_probes_lie_where_the_engine_looks_or_stay_in_the_plan(cluster: None, delivers: bool) -> None:
    rows = bare_rows()
    found = []
    for workers in (0, 2):
        credit_workers = make_workers({"segmenter": "newline", "credit_workers": workers}, delivers=delivers)
        source = lay_down(rows)
        _, plan = credit_workers.plan(source, rows.lengths)
        assert credit_workers.processes == workers
        assert (credit_workers.rows is None) == (workers > 0), "with actors no token comes to the driver"
        found.append(probes_of(source) if delivers else plan.specs)
        assert plan.tokens == sum(len(ids) for specs in found[-1] for _, ids, _ in specs)
        assert [len(specs) for specs in found[-1]] == [len(places) for places in plan.places]
        if delivers:
            assert credit_workers.undelivered().specs == found[-1], "for an engine that turns out not to look"
            assert credit_workers.rows is not None and not credit_workers.processes
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_log_probs_of_the_actor_there_are_none(cluster: None, workers: int) -> None:
    rows = bare_rows()
    credit_workers = make_workers({"segmenter": "newline", "credit_workers": workers})
    credit_workers.plan(lay_down(rows, without=("old_log_probs",)), rows.lengths)
    numbers, held = credit_workers.read_signals(), credit_workers.rows
    if workers:
        assert numbers is not None and numbers.prefixes is not None and numbers.gradient_norm_proxy is None
    else:
        assert numbers is None and held is not None and held.rollouts.log_probs is None


def test_a_source_gives_what_lies_there(cluster: None) -> None:
    rows = bare_rows()
    whole = lay_down(rows)
    source = whole.take([7, 2, 3])
    read, expected = source.rows(), rows.take([7, 2, 3])
    assert source.group_ids() == expected.rollouts.group_ids == read.rollouts.group_ids
    width = max(expected.lengths)
    assert read.lengths == expected.lengths
    assert torch.equal(read.rollouts.token_ids, expected.rollouts.token_ids[:, :width])
    assert torch.equal(read.rollouts.response_mask, expected.rollouts.response_mask[:, :width])
    assert torch.equal(read.rollouts.outcomes, expected.rollouts.outcomes)
    assert [prompt.tolist() for prompt in read.prompts] == [prompt.tolist() for prompt in expected.prompts]
    assert read.rollouts.ground_truths == ["2", "2", "2"]
    signals = source.signals(width)
    assert signals.keys() == {"log_probs", "entropies"}
    columns = torch.arange(width) < torch.tensor(expected.lengths)[:, None]
    assert expected.rollouts.log_probs is not None
    assert torch.equal(signals["log_probs"][columns], expected.rollouts.log_probs[:, :width][columns] - 0.1)
    assert torch.equal(source.numbers(["rm_scores"], 2)[0], expected.rollouts.rewards[:, :2])


def make_runner(
    options: dict[str, Any], *overrides: str, use_critic: bool = False, **trackers: Any
) -> CreditRunner:
    """As the trainer makes it, in its second step."""
    trainer = SimpleNamespace(
        config=verl_config("algorithm.adv_estimator=rredcot", *overrides),
        parameter_sync_step=1,
        global_steps=2,
        use_critic=use_critic,
        logger=SimpleNamespace(logger=trackers),
    )
    runner = CreditRunner(trainer, rr.RRedCoTConfig.from_mapping(options))
    runner.attach_tokenizer(TOKENIZER)
    return runner


@pytest.mark.parametrize("workers", [0, 2])
def test_estimators_that_may_read_texts_find_them(cluster: None, tmp_path: Path, workers: int) -> None:
    """Most of rredcot's do not, so with actors the driver reads no row for them."""
    path = tmp_path / "own.py"
    path.write_text("class Own:\n    proposes = 'nothing'\n")
    rows = bare_rows()
    source = lay_down(rows)
    tags = [{"response_len": length} for length in rows.lengths]
    batch = SimpleNamespace(keys=source.keys, partition_id=source.partition_id, tags=tags)
    for reader in ({"path": str(path), "name": "Own"}, "siblings"):
        own = make_runner({"value_estimator": reader, "credit_workers": workers})
        assert own._plan(batch, {}).held.rollouts.texts == rows.read(TABLE).rollouts.texts
    shipped = make_runner({"segmenter": "newline", "credit_workers": workers})
    assert (shipped._plan(batch, {}).rows is None) == (workers > 0)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"value_estimator": "confidence"}, {}),
        ({"value_estimator": "attention", "lam": 0.9}, {}),
        ({"probe_backend": "batched"}, {}),
        ({"dump_dir": "unwritten", "dump_every": 2}, {}),
        ({}, {"use_critic": True}),
        ({}, {"tensorboard": None}),
    ],
    ids=str,
)
def test_what_looks_at_tokens_has_the_driver_read_them(options: dict[str, Any], given: dict[str, Any]) -> None:
    assert make_runner(options, **given)._needs_rows()


def test_nothing_else_has_the_driver_read_tokens() -> None:
    assert not make_runner({})._needs_rows()
    assert not make_runner({"dump_dir": "unwritten", "dump_every": 3})._needs_rows(), "this is the second step"
    assert make_runner({}, "algorithm.use_kl_in_reward=True")._needs_rows()
