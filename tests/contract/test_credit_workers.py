"""A batch that Ray actors share has the same credit as one that the driver works on alone. Rows lie in a real
TransferQueue, from which actors read them and where they lay down their probes."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import rredcot_plugin as rr
from rredcot_plugin import choices
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import credit_workers as module_of_workers
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batch import BatchSource, tokenless
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.planning import setup
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.probes.layout import unpack
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import MASKED
from tests.contract.test_verl import verl_config
from tests.unit.test_group_work import TABLE, TOKENIZER, bare_rows

NUMBER = itertools.count()

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
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, logging_level=logging.ERROR)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


def lay_down(rows: PromptedRollouts, *, without: tuple[str, ...] = ()) -> BatchSource:
    """Rows where verl's agent loop and log-prob pass put theirs; a name of its own for every batch."""
    rollouts, generator = rows.rollouts, torch.Generator().manual_seed(1)
    signal = rollouts.log_probs
    assert signal is not None and rollouts.ground_truths is not None
    entropies = torch.rand(signal.shape, generator=generator)
    partition = f"batch {next(NUMBER)}"
    fields = []
    for row, length in enumerate(rows.lengths):
        columns = {
            "responses": rollouts.token_ids,
            "response_mask": rollouts.response_mask.long(),
            "rm_scores": rollouts.rewards,
            "rollout_log_probs": signal,
            "old_log_probs": signal - 0.1,
            "entropy": entropies,
        }
        tokens = {name: column[row, :length] for name, column in columns.items() if name not in without}
        truth = {"ground_truth": rollouts.ground_truths[row]}
        fields.append(
            {"uid": rollouts.group_ids[row], "prompts": rows.prompts[row], "reward_model": truth, **tokens}
        )
    keys = [f"{name}_{row}_0" for row, name in enumerate(rollouts.group_ids)]
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields))
    return BatchSource(keys, partition)


def make_workers(options: dict[str, Any], *, delivers: bool = True) -> CreditWorkers:
    config = rr.RRedCoTConfig.from_mapping(options)
    encoder = ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens)
    return CreditWorkers(config, TABLE, encoder, delivers=delivers)


def credit_of(
    credit_workers: CreditWorkers, rows: PromptedRollouts, kill: int | None = None, when: str = ""
) -> rr.Credit:
    """Credit as the runner gives it where no token comes to the driver; an actor may be killed on the way."""
    source = lay_down(rows)
    seen, plan = credit_workers.plan(source, rows.lengths)
    if when == "before the signals" and kill is not None:
        ray.kill(credit_workers.pool.actors[kill])
    assert credit_workers.update_signals()
    if when == "behind the signals" and kill is not None:
        ray.kill(credit_workers.pool.actors[kill])
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(places))] for places in plan.places]
    assert sum(map(len, log_probs)) == plan.size > 20
    ids = seen.levels[-1].segment_ids
    return assign_credit(
        tokenless(ids != MASKED, rows.rollouts.rewards, credit_workers.group_ids),
        dataclasses.replace(credit_workers.config, baseline=credit_workers.config.baseline_for(log_probs=True)),
        segments=seen.levels[-1],
        coarse=seen.levels[0],
        probed=plan.probed(log_probs, length_normalize=False),
        features=credit_workers.features,
        state_weight=credit_workers.state_weight,
    )


def credit_by_itself(credit_workers: CreditWorkers, rows: PromptedRollouts) -> rr.Credit:
    """Without the workers' features: from rollouts with their tokens and signals."""
    source = lay_down(rows)
    seen, plan = credit_workers.plan(source, rows.lengths)
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(places))] for places in plan.places]
    rollouts = dataclasses.replace(source.rows().rollouts, **source.signals(max(rows.lengths)))
    probed = plan.probed(log_probs, length_normalize=False)
    return assign_credit(
        rollouts, credit_workers.config, segments=seen.levels[-1], coarse=seen.levels[0], probed=probed
    )


def probes_of(source: BatchSource) -> list[list[Any]]:
    """What the engine would find."""
    data = tq.kv_batch_get(
        keys=source.keys, partition_id=source.partition_id, select_fields=[transfer_fields.PROBES]
    )
    return [unpack(vector) for vector in data[transfer_fields.PROBES].unbind()]


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


@pytest.mark.parametrize("when", ["before the step", "before the signals", "behind the signals"])
def test_a_dead_actor_does_not_stop_the_run(cluster: None, when: str, caplog: pytest.LogCaptureFixture) -> None:
    alone, shared = (make_workers({"segmenter": "newline", "credit_workers": workers}) for workers in (0, 2))
    rows = bare_rows()
    shared.plan(lay_down(rows), rows.lengths)
    if when == "before the step":
        ray.kill(shared.pool.actors[1])
    assert_same(credit_of(shared, rows, 1, when), credit_of(alone, rows))
    assert "credit_workers=2 failed" in caplog.text
    assert_same(credit_of(shared, rows), credit_of(alone, rows))


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
    assert not credit_workers.update_signals()


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


# ---- what comes to the driver


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
def test_estimators_of_users_find_texts(cluster: None, tmp_path: Path, workers: int) -> None:
    """Those of rredcot read none, so with actors the driver reads no row for them."""
    path = tmp_path / "own.py"
    path.write_text("class Own:\n    proposes = 'nothing'\n")
    rows = bare_rows()
    source = lay_down(rows)
    tags = [{"response_len": length} for length in rows.lengths]
    batch = SimpleNamespace(keys=source.keys, partition_id=source.partition_id, tags=tags)
    own = make_runner({"value_estimator": {"path": str(path), "name": "Own"}, "credit_workers": workers})
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
