"""The rollout server behind `rollout.name=hf_cpu`: a Ray actor that generates with transformers on the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.model import get_hf_auto_model_class
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from rredcot_plugin.integrations.cpu.batching import Batcher
from rredcot_plugin.integrations.cpu.generation import Generation, Request, generate_batch
from rredcot_plugin.integrations.cpu.sampling import Sampling, request_uniforms, token_budget
from rredcot_plugin.integrations.verl_cpu.weight_update import WeightUpdate


class HFServer:
    """Generates tokens for token prompts, in batches of the requests that arrive together.

    Weights come only from the training workers (`begin_weights`, `load_weights`, `finish_weights`); no
    request is served before the first complete update, and none while one is under way.
    """

    def __init__(self, config: RolloutConfig, model_config: Any, replica_rank: int) -> None:
        self.config = config
        self.replica_rank = replica_rank
        hf = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.max_len = config.max_model_len or config.prompt_length + config.response_length
        self.model = build_model(hf.hf_config, PrecisionType.to_dtype(config.dtype))
        self.eos_ids = eos_token_ids(hf.generation_config, hf.tokenizer)
        self.global_steps: int | None = None  # version of the weights
        self.occurrences: Counter[Any] = Counter()
        self.update: WeightUpdate | None = None
        self.weights_complete = False
        self.batcher = Batcher(self._generate_batch, max_batch=config.max_num_seqs)

    def ready(self) -> str:
        """The address under which verl's load balancer files this server; it is not a network address."""
        return f"hf_cpu-{self.replica_rank}"

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """verl's token-in, token-out interface; the log-probabilities are those of `processed_log_probs`.

        Raises ValueError for images, video and sampling parameters that are not supported.
        """
        if image_data is not None or video_data is not None or kwargs:
            raise ValueError(f"rollout hf_cpu generates from text only, got images, video or {sorted(kwargs)}")
        sampling = Sampling.from_request(sampling_params, ignore_eos=self.config.ignore_eos)
        budget = token_budget(
            sampling_params,
            prompt=len(prompt_ids),
            prompt_length=self.config.prompt_length,
            response_length=self.config.response_length,
            max_len=self.max_len,
        )
        answer = await self.batcher.submit((tuple(int(i) for i in prompt_ids), sampling, budget))
        result, version = answer or (Generation(), self.global_steps)
        return TokenOutput(
            token_ids=result.token_ids,
            log_probs=result.log_probs if sampling.log_probs else None,
            stop_reason="aborted" if result.finish == "abort" else "completed",
            extra_fields={"global_steps": version},
        )

    def _generate_batch(
        self, items: list[tuple[tuple[int, ...], Sampling, int]]
    ) -> list[tuple[Generation, int | None]]:
        """Runs in a thread, under the batcher's lock: the weights stay as they are meanwhile."""
        if not self.weights_complete:
            raise RuntimeError("rollout hf_cpu was asked to generate before it had received a full set of weights")
        requests = [self._request(*item) for item in items]
        results = generate_batch(self.model, requests, self.eos_ids, self.batcher.is_aborting)
        return [(result, self.global_steps) for result in results]

    def _request(self, prompt: tuple[int, ...], sampling: Sampling, budget: int) -> Request:
        occurrence = self.occurrences[prompt, sampling]
        self.occurrences[prompt, sampling] += 1
        uniforms = request_uniforms(
            budget,
            seed=self.config.seed,
            replica=self.replica_rank,
            version=self.global_steps,
            prompt=prompt,
            sampling=sampling,
            occurrence=occurrence,
        )
        return Request(prompt, sampling, uniforms)

    async def begin_weights(self) -> None:
        await self.batcher.lock.acquire()
        self.weights_complete = False
        self.update = WeightUpdate(self.model)

    def _current_update(self) -> WeightUpdate:
        if self.update is None:
            raise RuntimeError("weights arrived outside of a weight update")
        return self.update

    async def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self._current_update().add(name, weight)

    async def finish_weights(self, global_steps: int | None) -> None:
        """Check that every weight has arrived, and count requests afresh for this version of the weights."""
        try:
            self._current_update().finish()
        finally:
            self.update = None
            self.batcher.lock.release()
        self.weights_complete = True
        if global_steps is not None:
            self.global_steps = global_steps
        self.occurrences.clear()

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Return what the running requests have so far, and hold (or abort) new ones until `resume_generation`."""
        await self.batcher.abort(reject=reject_request)

    async def resume_generation(self) -> None:
        self.batcher.resume()

    async def _nothing_to_do(self, *args: Any, **kwargs: Any) -> None:
        """Between batches the server holds the weights and no cache: there is nothing to free or restore."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing_to_do
    start_profile = stop_profile = _nothing_to_do


def build_model(hf_config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """An empty model of the architecture that the actor has, in evaluation mode, with torch's own attention."""
    auto_class = get_hf_auto_model_class(hf_config=hf_config)
    model: torch.nn.Module = auto_class.from_config(hf_config, dtype=dtype, attn_implementation="sdpa")
    return model.to(dtype).eval().requires_grad_(False)


def eos_token_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a response: those of the generation config (one or several) and the tokenizer's."""
    configured = getattr(generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)
