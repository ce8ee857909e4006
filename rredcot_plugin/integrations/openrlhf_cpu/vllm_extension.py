"""What runs inside the worker process of vLLM's CPU build, which is none of Ray's: nothing is installed there yet."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

from rredcot_plugin.integrations.cpu.vllm_packing import keep_parameters
from rredcot_plugin.integrations.openrlhf_cpu import engine_worker, weights  # noqa: F401  they change OpenRLHF's modules


class CPUWorkerWrap(WorkerWrap):
    """OpenRLHF's worker extension, whose vLLM keeps the parameters that the trainer's weights are copied into."""

    def __new__(cls, *args: Any, **kwargs: Any) -> CPUWorkerWrap:
        keep_parameters()
        return super().__new__(cls)

    def update_weight(self, name: str, dtype: str, shape: Any, empty_cache: bool = False) -> None:
        """``dtype`` is the name that torch has for it.

        Raises:
            RuntimeError: the weight did not arrive.
            Exception: what vLLM raises where the model has no place for it.
        """
        super().update_weight(name, getattr(torch, dtype), shape, empty_cache)
