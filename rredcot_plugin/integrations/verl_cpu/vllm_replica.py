"""The rollout replica of `rollout.name=vllm` on a CPU: verl's own, with our worker extension."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class CPUvLLMHttpServer(vLLMHttpServer):
    """verl's vLLM server; its workers get `CPUColocateWorkerExtension`."""

    def _get_worker_extension_cls(self) -> str:
        return "rredcot_plugin.integrations.verl_cpu.vllm_extension.CPUColocateWorkerExtension"


class CPUvLLMReplica(vLLMReplica):
    """verl's vLLM replica; it starts `CPUvLLMHttpServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CPUvLLMHttpServer)
