"""Weights go through the checkpoint engine `cpu_store` unchanged, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from rredcot_plugin.integrations.verl_cpu import store_checkpoint_engine as engine_module
from rredcot_plugin.integrations.verl_cpu.store_checkpoint_engine import StoreCheckpointEngine, serve
from rredcot_plugin.integrations.verl_cpu.weight_chunks import (
    DTYPES,
    Chunk,
    WeightAssembler,
    pack,
    pack_end,
    unpack,
)

HALF = Chunk("w", (2, 3), torch.float32, 0, bytes(12))
END = pack_end(1)


class Attack:
    """A pickle that leaves a file behind where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def random_weights() -> dict[str, torch.Tensor]:
    """One weight of every dtype and rank, one of several chunks, one whose elements lie across two chunks."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for rank, (name, dtype) in enumerate(DTYPES.items()):
        shape = (3, 5, 7)[: rank % 4]
        numbers = torch.randint(0, 2, shape, generator=generator) + torch.rand(shape, generator=generator)
        found[f"layer.{name}"] = numbers.to(dtype)
    found["long"] = torch.randn(401, 3, generator=generator).to(torch.bfloat16)
    found["odd"] = torch.randn(333, generator=generator).double()
    return found


def header(**changes: Any) -> bytes:
    fields = {"name": "w", "shape": [2, 3], "dtype": "float32", "offset": 0, **changes}
    text = json.dumps(fields).encode()
    return len(text).to_bytes(4, "big") + text


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[StoreCheckpointEngine]:
    """The sender and two receivers, connected, with small chunks."""
    monkeypatch.setattr(engine_module, "CHUNK_BYTES", 999)
    monkeypatch.setattr(engine_module, "TIMEOUT", timedelta(seconds=10))
    monkeypatch.setattr(engine_module, "host_to_serve", lambda: "127.0.0.1")
    sender, *receivers = (StoreCheckpointEngine(1 << 20, is_master=rank == 0) for rank in range(3))
    metadata = [each.prepare() for each in (sender, *receivers)]
    actor, rollout = StoreCheckpointEngine.build_topology(1, 2, metadata)
    sender.init_process_group(actor["address"][0], actor["receivers"][0])
    for rank, receiver in enumerate(receivers):
        receiver.init_process_group(rollout["address"][rank], rollout["receivers"][rank])
    return [sender, *receivers]


async def received(engine: StoreCheckpointEngine) -> dict[str, torch.Tensor]:
    return {name: weight async for name, weight in engine.receive_weights()}


def test_every_dtype_arrives_as_it_was_sent(ends: list[StoreCheckpointEngine]) -> None:
    sender, *receivers = ends
    weights = random_weights()
    assert {weight.dtype for weight in weights.values()} >= {torch.bfloat16, torch.float8_e4m3fn, torch.bool}

    async def both() -> list[Any]:
        return await asyncio.gather(sender.send_weights(iter(weights.items())), *map(received, receivers))

    for found in asyncio.run(both())[1:]:
        assert list(found) == list(weights)
        for name, weight in weights.items():
            assert found[name].dtype == weight.dtype and found[name].shape == weight.shape
            assert torch.equal(found[name].view(-1).view(torch.uint8), weight.view(-1).view(torch.uint8))
    assert sender.store.num_keys() <= 1, "the last reader deletes what it read"


def test_a_pickle_is_refused_and_not_run(ends: list[StoreCheckpointEngine], tmp_path: Path) -> None:
    sender, receiver, _ = ends
    sender.store.set("1/0", pickle.dumps(Attack(tmp_path / "ran")))
    with pytest.raises(ValueError, match="expected a chunk of weights with its header"):
        asyncio.run(received(receiver))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"", "expected a chunk of weights with its header, got 0 bytes"),
        (bytes(4), "expected a chunk of weights with its header, got 4 bytes"),
        (header()[:-1], "expected a chunk of weights with its header"),
        (b"\x00\x00\x00\x02{)", "is not JSON"),
        (b"\x00\x00\x40\x00" + b"[" * (1 << 14), "is not JSON"),
        (b"\x00\x00\x00\x02[]", "expected a header with keys, got list"),
        (header(extra=1), "expected the header of a weight"),
        (END + b"x", "expected the header of a weight, got the keys .'chunks'"),
        (header(name=3) + bytes(24), "expected a name and a shape"),
        (header(shape=[2, -3]) + bytes(24), "expected a name and a shape"),
        (header(shape=[2, True]) + bytes(24), "expected a name and a shape"),
        (header(shape=6) + bytes(24), "expected a name and a shape"),
        (header(dtype="object") + bytes(24), "weight w has dtype 'object'; expected one of float64, "),
        (header(dtype=[1]) + bytes(24), "has dtype"),
        (header() + bytes(25), "has 24 bytes, got a chunk of 25 bytes at offset 0"),
        (header(shape=[2, 2]) + bytes(24), "has 16 bytes, got a chunk of 24 bytes"),
        (header(dtype="bfloat16") + bytes(24), "has 12 bytes, got a chunk of 24 bytes"),
        (header(offset=20) + bytes(8), "got a chunk of 8 bytes at offset 20"),
        (header(offset=-4) + bytes(4), "at offset -4"),
        (header(offset=0.0) + bytes(4), "at offset 0.0"),
        (header(), "got a chunk of 0 bytes"),
    ],
)
def test_malformed_messages_are_refused(message: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^cpu_store: .*{complaint}"):
        unpack(message)


def test_a_dtype_that_the_receiver_would_refuse_is_not_sent() -> None:
    with pytest.raises(ValueError, match="weight w has dtype complex64; expected one of float64, "):
        pack(Chunk("w", (1,), torch.complex64, 0, bytes(8)))


@pytest.mark.parametrize(
    "second",
    [
        Chunk("v", (2, 3), torch.float32, 12, bytes(12)),
        Chunk("w", (3, 2), torch.float32, 12, bytes(12)),
        Chunk("w", (2, 3), torch.int32, 12, bytes(12)),
        Chunk("w", (2, 3), torch.float32, 8, bytes(12)),
        HALF,
    ],
)
def test_a_chunk_that_does_not_continue_its_weight_is_refused(second: Chunk) -> None:
    assembler = WeightAssembler()
    assert assembler.add(HALF) is None
    with pytest.raises(ValueError, match="expected weight w from byte 12 on, got "):
        assembler.add(second)


def test_a_weight_that_begins_in_its_middle_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected weight w from byte 0 on, got w .* from byte 12 on"):
        WeightAssembler().add(Chunk("w", (2, 3), torch.float32, 12, bytes(12)))


def test_weights_that_are_not_all_there_are_refused(ends: list[StoreCheckpointEngine]) -> None:
    sender, receiver, other = ends
    sender.store.set("1/0", pack(HALF))
    sender.store.set("1/1", END)
    with pytest.raises(ValueError, match="weight w ends after 12 of its 24 bytes"):
        asyncio.run(received(receiver))
    sender.store.set("1/0", pack_end(2))
    with pytest.raises(ValueError, match="0 of 2 chunks of the weights arrived"):
        asyncio.run(received(other))


def test_the_store_listens_at_its_host_alone() -> None:
    (host, port), store = serve("127.0.0.1")
    assert host == "127.0.0.1" and store.port == port
    store.set("key", b"value")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
