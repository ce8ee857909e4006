"""Weights through a real TCP store, from one thread to another."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rredcot_plugin.integrations.openrlhf_cpu.weights import KEPT, PART_BYTES, StoreCommunicator


@pytest.fixture
def ends() -> Any:
    """The trainer's end and the engine's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(StoreCommunicator, "127.0.0.1", port, rank, 2) for rank in range(2)]
        return [end.result() for end in made]


SENT = [
    torch.randn(3, 5),
    torch.tensor(2.5),
    torch.randn(PART_BYTES // 4 * 2 + 1),  # above what the store takes at once, in two parts and a rest
    torch.randn(PART_BYTES // 4),
    torch.randn(7, 2).bfloat16().T,
]


def test_what_arrives_is_what_was_sent(ends: Any) -> None:
    sender, receiver = ends
    for weight in SENT:
        sender.broadcast(weight, src=0)
        found = torch.full_like(weight, -1.0)
        receiver.broadcast(found, src=0)
        assert torch.equal(found, weight)


def test_only_the_last_weights_are_kept(ends: Any) -> None:
    sender, _ = ends
    kept = []
    for weight in SENT:
        sender.broadcast(weight, src=0)
        kept.append(sender.store.num_keys())
    parts = [-(-weight.nbytes // PART_BYTES) for weight in SENT]
    own = kept[0] - parts[0] - 1  # keys of the store itself
    assert kept[-1] == own + sum(parts[-KEPT:]) + KEPT


def test_a_weight_of_another_size_is_refused(ends: Any) -> None:
    sender, receiver = ends
    sender.broadcast(torch.zeros(3, 5), src=0)
    with pytest.raises(RuntimeError, match=r"weight 0 has 60 bytes, expected 64 for \(4, 4\) of torch.float32"):
        receiver.broadcast(torch.empty(4, 4), src=0)
