"""What OpenRLHF uses of vLLM, on the CPU with transformers (`rredcot_plugin.integrations.openrlhf_cpu.engine`)."""

from rredcot_plugin.integrations.openrlhf_cpu.engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

__version__ = "0.29.0"
__all__ = ["AsyncEngineArgs", "AsyncLLMEngine", "SamplingParams"]
