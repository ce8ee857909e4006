"""The training worker's end of `rollout.name=hf_cpu`: sends every weight to the server of the same rank."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from rredcot_plugin.integrations.verl_cpu.hf_replica import server_name


class HFServerAdapter(BaseRollout):
    """Streams weights in buckets of `rollout.checkpoint_engine.update_weights_bucket_megabytes`.

    Whatever the server objects to is raised here, hence in the training worker, hence in the driver.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = replica_rank if replica_rank >= 0 else int(os.environ["RANK"])

    async def resume(self, tags: list[str]) -> None:
        """Nothing to restore: the server keeps its weights and has no standing cache."""

    async def release(self) -> None:
        """Nothing to free, for the same reason."""

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send all weights and let the server check them.

        Raises ValueError for partial weights (deltas, LoRA adapters), and what the server raises: missing or
        unknown names, shapes that differ.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"rollout hf_cpu needs wire_format=named_tensors, got {wire_format}")
        if peft_config is not None:
            raise ValueError("rollout hf_cpu needs merged weights: set +actor_rollout_ref.model.lora.merge=True")
        server = ray.get_actor(server_name(self.replica_rank))
        await server.begin_weights.remote()
        megabytes = self.config.checkpoint_engine.update_weights_bucket_megabytes
        async for bucket in _buckets(weights, megabytes << 20):
            await server.load_weights.remote(bucket)
        await server.finish_weights.remote(global_steps)


async def _buckets(weights: Any, limit: int) -> AsyncIterator[list[tuple[str, torch.Tensor]]]:
    """Lists of (name, weight) of about `limit` bytes; a larger weight gets a list of its own."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    async for name, weight in ensure_async_iterator(weights):
        if bucket and size + weight.nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, weight.detach()))
        size += weight.nbytes
    if bucket:
        yield bucket
