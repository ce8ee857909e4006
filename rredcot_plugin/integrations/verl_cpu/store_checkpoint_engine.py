"""Runs after `verl.checkpoint_engine.base`: the checkpoint engine `cpu_store`, for `trainer_mode=separate_async`.

That mode sends weights to rollout processes that are not paired with a training worker, and verl's own engines
for it need CUDA, NPU or RDMA libraries. This one passes them through torch's TCP key-value store: slow, simple,
and with a time-out, so that a lost peer ends the run.

The store knows no passwords. On a cluster of one node it listens on the loopback interface; on several nodes it listens on
the address of the trainer's node, where whoever reaches its port can replace weights, but not run code (`weight_chunks`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry, split_weight_chunks

from rredcot_plugin.integrations.verl_cpu.weight_chunks import Chunk, WeightAssembler, pack, pack_end, unpack

CHUNK_BYTES = 4 << 20  # the store refuses values above 8 MiB
TIMEOUT = timedelta(minutes=5)


@CheckpointEngineRegistry.register("cpu_store")
class StoreCheckpointEngine(CheckpointEngine):
    """Training rank 0 writes the weights in chunks; each of the R receivers reads them, the last one deletes."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.receivers = 0
        self.update = 0  # number of the weight update, the same everywhere: the prefix of its keys
        self.address: tuple[str, int] | None = None
        self.store: Any = None  # TCPStore, whose type stubs do not know that values are bytes

    def prepare(self) -> tuple[str, int] | None:  # type: ignore[override]  # verl passes it on unread
        if not self.is_master:
            return None
        if self.address is None:
            self.address, self.store = serve(host_to_serve())
        return self.address

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def arguments(size: int) -> dict[str, list[Any]]:
            return {"address": [metadata[0]] * size, "receivers": [rollout_world_size] * size}

        return arguments(actor_wg_world_size), arguments(rollout_world_size)

    def init_process_group(self, address: tuple[str, int], receivers: int) -> None:  # type: ignore[override]
        self.receivers = receivers
        self.update += 1
        if self.store is None:
            self.store = TCPStore(*address, is_master=False, timeout=TIMEOUT)

    def finalize(self) -> None:
        """The connection stays for the next update."""

    def _connected(self) -> Any:
        if self.store is None:
            raise RuntimeError("cpu_store: weights are sent before init_process_group")
        return self.store

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Every training rank walks the generator (each weight is a collective); only rank 0 writes."""
        index = 0
        async for meta, chunk in split_weight_chunks(weights, CHUNK_BYTES):
            if self.is_master and chunk is not None:
                data = chunk.detach().numpy().tobytes()
                value = pack(Chunk(meta.name, tuple(meta.shape), meta.dtype, meta.chunk_offset, data))
                await asyncio.to_thread(self._connected().set, self._key(index), value)
            index += 1
        if self.is_master:
            self._connected().set(self._key(index), pack_end(index))

    async def receive_weights(  # type: ignore[override]  # verl declares a generator and iterates either kind
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Raises ValueError for anything but the chunks of whole weights, one after the other."""
        assembler = WeightAssembler()
        async for chunk in self._chunks():
            if isinstance(chunk, int):
                assembler.finish(chunk)
                return
            weight = assembler.add(chunk)
            if weight is not None:
                yield weight

    async def _chunks(self) -> AsyncIterator[Chunk | int]:
        store, index = self._connected(), 0
        while True:
            key = self._key(index)
            message = await asyncio.to_thread(store.get, key)
            if store.add(f"{key}/readers", 1) == self.receivers:
                store.delete_key(key)
                store.delete_key(f"{key}/readers")
            yield unpack(message)
            index += 1

    def _key(self, index: int) -> str:
        return f"{self.update}/{index}"


def host_to_serve() -> str:
    """The loopback address, where all processes of the cluster are on this node; else the node's own."""
    if sum(node["Alive"] for node in ray.nodes()) == 1:
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address()).strip("[]")


def serve(host: str) -> tuple[tuple[str, int], Any]:
    """A store that listens at ``host`` alone, and its address; torch's own listens on every interface."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    port = int(listening.getsockname()[1])
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "timeout": TIMEOUT}
    return (host, port), TCPStore(host, port, **options, master_listen_fd=listening.detach())
