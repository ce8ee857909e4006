"""Probes as rows of their own go through TransferQueue a few thousand at a time, and none of them stays there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transfer_queue as tq

from rredcot_plugin.integrations.verl import batched
from rredcot_plugin.planning.result import PROBE_ROWS
from rredcot_plugin.probes.layout import ProbeSpec
from tests.contract.memory import TEMPERATURE, Actor, MemoryQueue, probe_log_prob
from tests.contract.runner_steps import queue  # noqa: F401  fixture

MULTIPLE = 4
BUDGET = 20
TRACES = [torch.arange(3, 3 + length) for length in (30, 9, 12)]
SPECS: list[list[ProbeSpec]] = [
    [(boundary, (7, boundary, 9), 1) for boundary in range(2, 13)],
    [],
    [(5, (1, 2), 0), (12, (4,), 0)],
]


def log_probs(actor: Any) -> list[list[float]]:
    return batched.batched_log_probs(
        actor, TRACES, SPECS, temperature=TEMPERATURE, multiple=MULTIPLE, max_tokens_per_gpu=BUDGET
    )


@pytest.mark.parametrize("at_once", [1, 6, 9, 4096], ids=["fewer than must be", "of four", "of eight", "one"])
def test_any_number_of_chunks_gives_the_log_probs_of_one(
    queue: MemoryQueue,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    monkeypatch.setattr(batched, "MOST_ROWS", at_once)
    actor = Actor(queue)
    found = log_probs(actor)
    for trace, row, own in zip(TRACES, SPECS, found, strict=True):
        assert own == pytest.approx([probe_log_prob(trace, spec, 0, TEMPERATURE) for spec in row])
    asked = [info["rows"] for info in actor.infos]
    assert asked == {1: [4, 4, 4, 4], 6: [4, 4, 4, 4], 9: [8, 8], 4096: [16]}[at_once]
    assert all(info["max_token_len_per_gpu"] == BUDGET for info in actor.infos)
    assert not queue.rows, "nothing is left behind"


def test_no_chunk_holds_more_rows_than_the_limit(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    put, held = tq.kv_batch_put, []

    def watched(**row: Any) -> Any:
        found = put(**row)
        held.append(len(queue.rows))
        return found

    monkeypatch.setattr(tq, "kv_batch_put", watched)
    assert batched.MOST_ROWS == PROBE_ROWS, "what `rredcot plan` counts"
    monkeypatch.setattr(batched, "MOST_ROWS", 8)
    log_probs(Actor(queue))
    assert held == [8, 8]


def test_long_rows_go_in_smaller_chunks(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven rows of 5 to 15 tokens, then two of 7 and 13: a chunk of fours ends where it has 50."""
    expected = log_probs(Actor(queue))
    monkeypatch.setattr(batched, "MOST_TOKENS", 50)
    actor = Actor(queue)
    assert log_probs(actor) == expected
    assert [info["rows"] for info in actor.infos] == [8, 8]
    monkeypatch.setattr(batched, "MOST_TOKENS", 20)
    actor = Actor(queue)
    assert log_probs(actor) == expected
    assert [info["rows"] for info in actor.infos] == [4, 4, 4, 4]


class FailingActor(Actor):
    """Its workers die in the second chunk."""

    def compute_log_prob(self, meta: Any) -> Any:
        if self.calls:
            raise RuntimeError("a worker has died")
        return super().compute_log_prob(meta)


def test_a_chunk_whose_pass_fails_is_cleared(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "MOST_ROWS", 8)
    with pytest.raises(RuntimeError, match="a worker has died"):
        log_probs(FailingActor(queue))
    assert not queue.rows


def test_a_chunk_whose_rows_find_no_room_is_cleared(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    put = tq.kv_batch_put

    def full(**row: Any) -> Any:
        put(**row)
        raise RuntimeError("Storage capacity exceeded")

    monkeypatch.setattr(tq, "kv_batch_put", full)
    with pytest.raises(RuntimeError, match="capacity exceeded"):
        log_probs(Actor(queue))
    assert not queue.rows


def test_nothing_is_asked_without_probes(queue: MemoryQueue) -> None:
    actor = Actor(queue)
    found = batched.batched_log_probs(actor, TRACES, [[], [], []], temperature=1.0, multiple=MULTIPLE)
    assert found == [[], [], []]
    assert actor.calls == []
