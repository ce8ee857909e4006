"""Runs after ``openrlhf.trainer.ray.vllm_engine`` where vLLM's CPU build generates: OpenRLHF's actor with what the CPU needs."""

from __future__ import annotations

import os
from typing import Any

import openrlhf.trainer.ray.vllm_engine as host
import ray

from rredcot_plugin.integrations.openrlhf_cpu import ENGINE

EXTENSION = "rredcot_plugin.integrations.openrlhf_cpu.vllm_extension.CPUWorkerWrap"
PICKLES = "VLLM_ALLOW_INSECURE_SERIALIZATION"

DEFAULT_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; else the share of all memory that --vllm.gpu_memory_utilization names
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every process is bound to cores that the trainer needs, too
    "VLLM_NO_USAGE_STATS": "1",
}
"""Of vLLM, where the environment does not say otherwise."""

_Rollout: Any = host.RolloutRayActor.__ray_metadata__.modified_class


class CPURolloutActor(_Rollout):
    """OpenRLHF's actor: an engine in float32, whose worker takes weights from the store; no pickles between the two.

    Raises:
        ValueError: tensor parallelism, which needs vLLM's Ray executor.
    """

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        if (size := kwargs.get("tensor_parallel_size", 1)) != 1:
            raise ValueError(f"--vllm.tensor_parallel_size {size}: {ENGINE}=vllm needs 1")
        await super().__init__(*args, **{**kwargs, "dtype": "float32", "worker_extension_cls": EXTENSION})

    def _configure_vllm_env(self, *args: Any, **kwargs: Any) -> None:
        asked = os.environ.get(PICKLES)
        super()._configure_vllm_env(*args, **kwargs)
        if asked is None:
            del os.environ[PICKLES]  # OpenRLHF's, for types of weights; ours go by name
        for name, value in DEFAULT_ENVIRONMENT.items():
            os.environ.setdefault(name, value)

    async def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> Any:
        return await super().update_weight(name, str(dtype).removeprefix("torch."), list(shape), empty_cache)


host.RolloutRayActor = ray.remote(CPURolloutActor)
