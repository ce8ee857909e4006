"""The rollout replica of `actor_rollout_ref.rollout.name=hf_cpu`: it starts one `HFServer`."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica

from rredcot_plugin.integrations.verl_cpu.hf_server import HFServer


def server_name(replica_rank: int) -> str:
    """Name of the Ray actor through which the training worker finds its server."""
    return f"hf_cpu_server_{replica_rank}"


class HFReplica(RolloutReplica):
    """One server process per replica; raises ValueError for model parallelism and for reward or teacher models."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"rollout hf_cpu runs on one process, got {self.world_size} (tensor x data x pipeline): "
                "set actor_rollout_ref.rollout.tensor_model_parallel_size=1"
            )
        if self.is_reward_model or self.is_teacher_model:
            raise ValueError("rollout hf_cpu serves the policy only: it gets its weights from the actor")
        actor_class: Any = ray.remote(HFServer).options(
            name=server_name(self.replica_rank), max_concurrency=self.max_concurrency
        )
        self._server_handle = actor_class.remote(self.config, self.model_config, self.replica_rank)
        self.servers = [self._server_handle]
        self._server_address = await self._server_handle.ready.remote()
