"""Whole steps of verl's own trainer methods through the plugin, without Ray (``memory.py``): every number that comes
out is compared with what the core alone makes of the same rows, whatever their order."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.probes.layout import unpack
from rredcot_plugin.report.traces import read_dumps
from tests.contract.memory import (
    PARTITION,
    TEMPERATURE,
    Actor,
    MemoryQueue,
    assert_credited,
    expected,
    key_of,
    lay_down,
    make_trainer,
    probe_log_prob,
    step,
    token_log_probs,
)
from tests.contract.runner_steps import (
    NEWLINE,
    config,
    queue,  # noqa: F401  fixtures
)
from tests.unit.test_group_work import TOKENIZER, bare_rows


@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_step_gives_every_row_the_credit_of_its_own_tokens(queue: MemoryQueue, backend: str, seed: int) -> None:
    rows = bare_rows(seed=seed)
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": backend})
    metrics: dict[str, Any] = {}
    found = step(trainer, lay_down(queue, rows, seed=seed), metrics)
    credit, _ = expected(rows, config())
    assert_credited(found, rows, credit)
    assert all(float(found[f"pad_{i}_0"].abs().max()) == 0 for i in range(3))
    assert metrics["rredcot/probes/in_pass/mean"] == (backend != "batched")
    for name, value in credit.metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(("budget", "room"), [(5, False), (10**6, True)])
def test_a_probe_longer_than_the_token_budget_has_room(queue: MemoryQueue, budget: int, room: bool) -> None:
    """verl's dynamic micro-batches refuse a row that the budget does not hold; behind a long trace a probe may be one."""
    key = f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={budget}"
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": "batched"}, key)
    step(trainer, lay_down(queue, rows))
    (asked,) = [info for info in trainer.actor_rollout_wg.infos if "max_token_len_per_gpu" in info]
    longest = max(len(trace) for trace in rows.traces())
    assert asked["max_token_len_per_gpu"] == budget if room else asked["max_token_len_per_gpu"] > longest


@pytest.mark.parametrize("backend", ["cached", "batched"])
def test_a_dump_says_of_what_answers_its_values_are_made(queue: MemoryQueue, tmp_path: Path, backend: str) -> None:
    """Without calibration V̂ is what the answers are worth above the lowest reward, weighted by their probabilities."""
    options = {**NEWLINE, "calibrate": "none", "dump_dir": str(tmp_path), "probe_backend": backend}
    step(make_trainer(queue, options), lay_down(queue, bare_rows()))
    traces = read_dumps(tmp_path)
    lowest = min(trace.reward for trace in traces)
    assert lowest == -1.0
    compared = 0
    for trace in traces:
        for i, segment in enumerate(trace.segments[1:], start=1):
            if trace.proposals and all(one.kind == "group" for one in trace.proposals):
                worth = lowest + sum(one.probabilities[i] * (one.utility - lowest) for one in trace.proposals)
                assert segment.value == pytest.approx(worth, rel=5e-3, abs=2e-6)
                compared += 1
    assert compared > len(traces) / 2
    assert json.loads((tmp_path / "run.json").read_text())["options"]["calibrate"] == "none"


def test_the_engine_is_asked_once_and_not_again_in_later_passes(queue: MemoryQueue) -> None:
    trainer = make_trainer(queue, NEWLINE)
    batch, metrics = lay_down(queue, bare_rows()), {}
    after = trainer._compute_old_log_prob(batch, metrics)
    actor = trainer.actor_rollout_wg
    assert actor.calls == ["log-probs"]
    assert actor.infos[0][transfer_fields.BACKEND] == "cached"
    assert transfer_fields.BACKEND not in batch.extra_info
    assert transfer_fields.BACKEND not in after.extra_info, (
        "the pass of the reference model would run the probes again"
    )
    assert metrics["timing_s/rredcot_probes"] == pytest.approx(0.25 * len(batch.keys) / 2), "per GPU"


def test_probes_as_rows_have_the_temperature_of_the_rollout_and_fill_the_micro_batches(queue: MemoryQueue) -> None:
    micro_batches = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=7"
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": "batched"}, micro_batches)
    step(trainer, lay_down(queue, bare_rows()))
    actor = trainer.actor_rollout_wg
    assert actor.calls == ["log-probs", "probes"]
    assert actor.infos[1]["temperature"] == TEMPERATURE
    assert actor.infos[1]["rows"] % 14 == 0, "two GPUs times seven rows"
    assert {partition for partition, _ in queue.rows} == {PARTITION}, "nothing is left behind"


def test_an_engine_that_does_not_answer_has_probes_run_as_rows_from_the_same_step_on(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE, actor_rollout_wg=Actor(queue, answers=False))
    credit, _ = expected(rows, config())
    metrics: dict[str, Any] = {}
    assert_credited(step(trainer, lay_down(queue, rows), metrics), rows, credit)
    assert "cannot run probes in the log-prob pass" in caplog.text
    assert metrics["rredcot/probes/in_pass/mean"] == 0
    step(trainer, lay_down(queue, rows, seed=2))
    assert trainer.actor_rollout_wg.calls == ["log-probs", "probes"] * 2


def test_a_wrong_answer_of_one_row_moves_nothing_of_other_groups(queue: MemoryQueue) -> None:
    """Every row's log-probs are its own: rows of a group without a usable probe fall back, others keep theirs."""
    rows = bare_rows()
    options = {**NEWLINE, "calibrate": "none", "baseline": "value"}
    trainer = make_trainer(queue, options)
    run, actor = Actor._run, trainer.actor_rollout_wg
    broken = key_of(rows, 4)

    def breaks(self: Actor, row: dict[str, Any], info: dict[str, Any]) -> None:
        run(self, row, info)
        if row is queue.rows[PARTITION, broken] and transfer_fields.LOG_PROBS in row:
            row[transfer_fields.LOG_PROBS][1:] = torch.nan

    actor._run = breaks.__get__(actor)
    found = step(trainer, lay_down(queue, rows))
    credit, _ = expected(rows, config(calibrate="none", baseline="value"))
    for row, length in enumerate(rows.lengths):
        if rows.rollouts.group_ids[row] != rows.rollouts.group_ids[4]:
            assert torch.allclose(found[key_of(rows, row)], credit.advantages[row, :length], atol=1e-5)
    assert not torch.allclose(found[broken], credit.advantages[4, : rows.lengths[4]], atol=1e-3)
    assert torch.isfinite(found[broken]).all()


def test_a_plane_in_memory_is_enough(queue: MemoryQueue) -> None:
    """A host needs the protocol alone (``adapter.data_plane.DataPlane``), not TransferQueue's fields or keys."""
    rows = bare_rows()
    plane = Held(rows, {})
    trainer = make_trainer(queue, {})
    runner = CreditRunner(trainer, config(), lambda batch, index: plane.take(list(index)))
    runner.attach_tokenizer(TOKENIZER)
    keys = [f"{row}_0_0" for row in range(len(rows.lengths))]
    batch = SimpleNamespace(keys=keys, tags=[{"response_len": n} for n in rows.lengths], extra_info={})
    runner.compute_old_log_prob(batch, {}, lambda given, metrics: given)
    rewards = rows.rollouts.rewards
    advantages, _ = runner.compute_advantage(batch, {})(rewards, rows.rollouts.response_mask.long())
    credit, _ = expected(rows, config())
    assert torch.allclose(advantages, credit.advantages, atol=1e-5)


@dataclasses.dataclass(frozen=True)
class Held:
    """Rows held in memory, and the probes that were laid down for them."""

    held: PromptedRollouts
    probes: dict[int, torch.Tensor]
    index: list[int] | None = None

    @property
    def _index(self) -> list[int]:
        return list(range(len(self.held.lengths))) if self.index is None else self.index

    def take(self, index: list[int]) -> Held:
        return dataclasses.replace(self, index=[self._index[i] for i in index])

    def group_ids(self) -> list[str]:
        return [str(self.held.rollouts.group_ids[i]) for i in self._index]

    def rows(self) -> PromptedRollouts:
        return self.held.take(self._index)

    def _traces(self) -> list[torch.Tensor]:
        rows = self.rows()
        return [torch.cat([p, rows.rollouts.token_ids[i, : rows.lengths[i]]]) for i, p in enumerate(rows.prompts)]

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        found = torch.zeros(len(self._index), width)
        for i, trace in enumerate(self._traces()):
            own = token_log_probs(trace, 0, TEMPERATURE)[len(self.rows().prompts[i]) :]
            found[i, : len(own)] = torch.tensor(own)
        return {"log_probs": found, "entropies": found.abs().sqrt()}

    def numbers(self, fields: Any, width: int) -> list[torch.Tensor]:
        return []

    def put_probes(self, vectors: Any) -> None:
        self.probes.update(zip(self._index, vectors, strict=True))

    def put_answer_starts(self, starts: Any) -> None: ...

    def reward_fields(self) -> list[dict[str, Any]]:
        return []

    def answers(self) -> list[torch.Tensor]:
        specs = [unpack(self.probes[i]) for i in self._index]
        found = [
            [probe_log_prob(trace, spec, 0, TEMPERATURE) for spec in row]
            for trace, row in zip(self._traces(), specs, strict=True)
        ]
        return [torch.tensor([0.0, *own]) for own in found]
