"""vLLM's engine as OpenRLHF uses it, with transformers on the CPU: requests that arrive together are one batch."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from rredcot_plugin.integrations.cpu.batching import Batcher
from rredcot_plugin.integrations.cpu.generation import Generation, Request, generate_batch
from rredcot_plugin.integrations.cpu.sampling import Sampling, request_uniforms

MAX_BATCH = 256


@dataclass
class SamplingParams:
    """Those of vLLM's that OpenRLHF sets."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = 16
    min_tokens: int = 0
    skip_special_tokens: bool = True
    logprobs: int | None = None


class AsyncEngineArgs(SimpleNamespace):
    """Keyword arguments as attributes."""


class AsyncLLMEngine:
    """``generate``, ``collective_rpc`` and what there is nothing to do for."""

    def __init__(self, args: AsyncEngineArgs) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.seed, self.max_len, self.version = int(args.seed), int(args.max_model_len), 0
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        ids = self.model.generation_config.eos_token_id
        own = [*(ids if isinstance(ids, list) else [ids]), self.tokenizer.eos_token_id]
        self.eos_ids = frozenset(i for i in own if i is not None)
        self.worker = build_worker(self.model, args.worker_extension_cls)
        self.seen: Counter[Any] = Counter()
        self.waiting = 0
        self.batcher = Batcher(self._generate, MAX_BATCH)
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: self.waiting)

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        return cls(args)

    async def generate(self, prompt: Any, params: SamplingParams, request_id: str) -> AsyncIterator[Any]:
        """One output with the whole response, as vLLM's last one.

        Raises:
            ValueError: a prompt that leaves no room; ``min_tokens``, which this engine has not.
        """
        ids = tuple(int(token) for token in prompt["prompt_token_ids"])
        room = self.max_len - len(ids)
        if room < 1 or params.min_tokens > 1:
            raise ValueError(
                f"request of {len(ids)} tokens with min_tokens={params.min_tokens}: expected up to {self.max_len - 1}, and "
                "min_tokens of at most 1"
            )
        sampling = Sampling(params.temperature, params.top_p, params.top_k, log_probs=params.logprobs is not None)
        self.waiting += 1
        try:
            found = await self.batcher.submit((ids, sampling, min(params.max_tokens or room, room)))
        finally:
            self.waiting -= 1
        yield SimpleNamespace(outputs=[self._output(found or Generation())])

    def _output(self, found: Generation) -> SimpleNamespace:
        log_probs = [
            {token: SimpleNamespace(logprob=value)}
            for token, value in zip(found.token_ids, found.log_probs, strict=True)
        ]
        text = self.tokenizer.decode(found.token_ids)
        return SimpleNamespace(
            token_ids=found.token_ids, text=text, finish_reason=found.finish, logprobs=log_probs
        )

    def _generate(self, items: Sequence[tuple[tuple[int, ...], Sampling, int]]) -> list[Generation]:
        return generate_batch(self.model, [self._request(*item) for item in items], self.eos_ids)

    def _request(self, prompt: tuple[int, ...], sampling: Sampling, budget: int) -> Request:
        occurrence = self.seen[prompt, sampling]
        self.seen[prompt, sampling] += 1
        uniforms = request_uniforms(
            budget,
            seed=self.seed,
            replica=0,
            version=self.version,
            prompt=prompt,
            sampling=sampling,
            occurrence=occurrence,
        )
        return Request(prompt, sampling, uniforms)

    async def collective_rpc(
        self, method: str, timeout: Any = None, args: tuple = (), kwargs: Any = None
    ) -> list[Any]:
        """Call the worker between two batches; the weights of a batch are the same from its first token to its last."""
        async with self.batcher.lock:
            if method == "update_weight":
                self.version += 1
                self.seen.clear()
            return [getattr(self.worker, method)(*args, **(kwargs or {}))]

    async def is_sleeping(self) -> bool:
        return False

    async def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """There is no cache between batches, and nothing to put to sleep."""

    reset_prefix_cache = pause_generation = resume_generation = sleep = wake_up = _nothing


class _Loaded:
    """``load_weights`` of a vLLM model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = dict(model.named_parameters())

    def load_weights(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name not in self.parameters:
                raise RuntimeError(f"weight {name}: the engine's model has no such parameter")
            with torch.no_grad():
                self.parameters[name].copy_(weight)


def build_worker(model: torch.nn.Module, extension: str) -> Any:
    """A worker with OpenRLHF's extension, and what that reads of one."""
    module, _, name = extension.rpartition(".")
    base: Any = getattr(importlib.import_module(module), name)
    worker = type("CPUWorker", (base,), {})()
    worker.device = torch.device("cpu")
    worker.model_runner = SimpleNamespace(model=_Loaded(model))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return worker
