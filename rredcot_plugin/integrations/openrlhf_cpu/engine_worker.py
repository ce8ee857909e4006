"""Runs after ``openrlhf.trainer.ray.vllm_worker_wrap``: engines receive weights in the CPU's memory."""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ray.vllm_worker_wrap as host
import torch


def update_weight(self: Any, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
    """As OpenRLHF's own, which allocates on "cuda".

    Raises:
        RuntimeError: the weight did not arrive, or has no place in the model; OpenRLHF ends the run with it.
    """
    weight = torch.empty(shape, dtype=dtype)
    self._model_update_group.broadcast(weight, src=0)
    self.model_runner.model.load_weights(weights=[(name, weight)])


host.WorkerWrap.update_weight = update_weight
