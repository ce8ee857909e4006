"""What asynchronous training changes for credit, and what it must not: rollouts of older policies, of several, and of the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput

from rredcot_plugin.integrations.verl.sessions import row_roles
from tests.contract.async_steps import MODES, ListedQueue, rollout, sampled_step, trainer_of
from tests.contract.memory import PARTITION, TEMPERATURE, assert_credited, expected, key_of, token_log_probs
from tests.contract.runner_steps import config
from tests.unit.test_group_work import bare_rows

STEPS = range(1, 7)
WINDOW = {"calibrate_window": 2}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> ListedQueue:
    return ListedQueue(monkeypatch)


def run(
    queue: ListedQueue, mode: str, options: dict[str, Any], *, lag: int = 0, untold: bool = False
) -> list[tuple[dict[str, torch.Tensor], dict[str, Any]]]:
    """Advantages and metrics of six steps, whose rollouts are those of weights ``lag`` versions before the newest; every
    other row, so that batches have both."""
    trainer, found = trainer_of(queue, mode, options), []
    for step in STEPS:
        rows, metrics = bare_rows(seed=step), {}
        own = {row: (step - 1 - lag * (row % 2),) * 2 for row in range(len(rows.lengths))}
        rollout(queue, rows, step, dict.fromkeys(own, (None, None)) if untold else own)
        found.append((sampled_step(trainer, step, metrics), metrics))
        assert not queue.tags, "everything was sampled and is gone"
    return found


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize(
    "options", [{}, WINDOW, {"probe_backend": "batched", "baseline": "value"}, {"calibrate": "trees"}]
)
def test_without_staleness_every_trainer_gives_the_credit_of_the_synchronous_one(
    queue: ListedQueue, mode: str, options: dict[str, Any]
) -> None:
    """The same rollouts, sampled and credited for six steps of changing weights: equal to the bit, window and metrics
    included."""
    ours = run(queue, mode, options)
    assert type(trainer_of(queue, mode, {}).replay_buffer).__name__ == "ReplayBufferAsync"
    for (found, metrics), (wanted, others) in zip(ours, run(queue, "sync", options), strict=True):
        assert found.keys() == wanted.keys() and len(found) == 20
        assert all(torch.equal(found[key], own) for key, own in wanted.items())
        assert {k: v for k, v in metrics.items() if "rredcot" in k} == {
            k: v for k, v in others.items() if "rredcot" in k
        }
    assert metrics["rredcot/value/window_age/mean"] > 0


def test_rollouts_of_an_older_policy_leave_the_window_before_those_that_came_with_them(queue: ListedQueue) -> None:
    same, late = run(queue, "separate_async", WINDOW), run(queue, "separate_async", WINDOW, lag=3)
    equal = [
        all(torch.allclose(a[k], b[k], atol=1e-6) for k in b) for (a, _), (b, _) in zip(late, same, strict=True)
    ]
    assert equal == [True, False, False, False, False, False], "the first step has no past"
    ages = [[metrics["rredcot/value/window_age/mean"] for _, metrics in found] for found in (same, late)]
    assert ages[0][-1] == pytest.approx(1.0, abs=0.1) and 1.0 < ages[1][-1] < 3.0


def test_where_versions_are_not_told_batches_count_as_they_come(queue: ListedQueue) -> None:
    told, untold = run(queue, "sync", WINDOW), run(queue, "sync", WINDOW, untold=True)
    for (found, metrics), (wanted, others) in zip(untold, told, strict=True):
        assert all(torch.equal(found[key], own) for key, own in wanted.items())
        age = "rredcot/value/window_age/mean"
        assert metrics[age] == others[age]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
def test_a_trace_of_several_versions_is_valued_by_the_weights_of_old_log_probs(
    queue: ListedQueue, mode: str, backend: str
) -> None:
    """One policy looks at all of it, whoever wrote which token; in the window it is as old as its last one."""
    rows, spans = bare_rows(), {4: (2, 6), 9: (5, 7), 11: (None, 3), 12: (7, None)}
    trainer = trainer_of(queue, mode, {"probe_backend": backend})
    rollout(queue, rows, 8, spans)
    stored = dict(queue.rows)
    assert_credited(sampled_step(trainer, 8), rows, expected(rows, config(), weights=7)[0])
    for row, length in enumerate(rows.lengths):
        fields = stored[PARTITION, key_of(rows, row)]
        wanted = token_log_probs(fields["input_ids"], 7, TEMPERATURE)[-length:]
        assert fields["old_log_probs"].tolist() == pytest.approx(wanted, abs=1e-6)
    (versions,) = trainer.rredcot.calibrator.state_dict()["version"]
    assert sorted({*versions.nan_to_num(-1).tolist()}) == [-1, 3, 6, 7]


def test_versions_reach_the_window_where_no_row_comes_to_the_driver(queue: ListedQueue) -> None:
    """As with ``credit_workers`` beside it, which leave it the numbers of the states."""
    rows, found = bare_rows(), []
    for beside in (False, True):
        trainer = trainer_of(queue, "sync", {})
        rollout(queue, rows, 8, {4: (2, 6)})
        batch, _ = trainer.replay_buffer.sample(global_steps=8, partition_id=PARTITION, batch_size=5)
        batch.extra_info["temperature"] = TEMPERATURE
        trainer._compute_old_log_prob(batch, {})
        runner = trainer.rredcot
        if beside:
            runner.state.numbers, runner.state.rows = runner.credit_workers._here.state_numbers(), None
        trainer._compute_advantage(batch, {})
        found.append(runner.calibrator.state_dict()["version"][0])
        queue.kv_clear(batch.keys, PARTITION)
    assert torch.equal(*found) and {*found[0].tolist()} == {6, 7}


def test_a_session_has_the_newest_version_of_its_outputs() -> None:
    tags = [{"max_global_steps": step} for step in (4, 3, None, "7", 2)] + [{}, {"is_padding": True}]
    roles = row_roles(["a_0_1", "a_0_0", "a_1_0", "a_2_0", "a_2_1", "b_0_0", "pad_0_0"], tags)
    assert dict(zip(roles.names, roles.versions(tags).nan_to_num(-1).tolist(), strict=True)) == {
        "a_0": 4, "a_1": -1, "a_2": 2, "b_0": -1,
    }  # fmt: skip


def test_verl_tells_the_first_and_the_last_version_of_an_interrupted_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client goes on with what an update has cut off: ``max_global_steps`` is that of the last tokens."""
    parts = [([11, 12], "aborted", 3), ([], "aborted", 4), ([13], "completed", 6)]

    class Server:
        class generate:  # noqa: N801  looks like a Ray method
            @staticmethod
            async def remote(prompt_ids: list[int], **kwargs: Any) -> TokenOutput:
                ids, reason, version = parts.pop(0)
                return TokenOutput(token_ids=ids, stop_reason=reason, extra_fields={"global_steps": version})

    class Client(FullyAsyncLLMServerClient):
        async def _acquire_server(self, request_id: str, **extra: Any) -> Any:
            return "one", Server

        def _release_server(self, server_id: str, request_id: str | None = None) -> None: ...

    async def no_time(seconds: float) -> None: ...

    monkeypatch.setattr(asyncio, "sleep", no_time)
    rollout_config = SimpleNamespace(name="vllm", response_length=8)
    client = Client(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout_config)))
    output = asyncio.run(client.generate("a", prompt_ids=[1], sampling_params={}))
    assert output.token_ids == [11, 12, 13]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 6)
