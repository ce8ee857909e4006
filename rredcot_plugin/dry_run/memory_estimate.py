"""What a run will ask of each GPU: an estimate from sizes, before anything has run.

P parameters, G GPUs that share one copy of the training state, K tensor-parallel ranks, n tokens of a micro-batch, L
layers, h hidden, f feed-forward, V vocabulary; bytes (the formulas of a token: planning/memory.py):

- training state: 16 P / G (fp32 weights, gradients, two Adam moments); with LoRA 4 P / G + 16 times the adapters'
  parameters; with Megatron 6 P / K + 12 P / G. ``param_offload`` (weights, gradients) and ``optimizer_offload`` (the
  rest) empty the GPU for the rollout and bring all of it back for the update; FSDP2's ``offload_policy`` keeps it away.
- update: n (2 L h + 10 V / K + 16 h + 8 f): checkpoints between layers, logits in two precisions with their gradient,
  the activations of one layer.
- rollout: `gpu_memory_utilization` of the GPU, weights and KV cache included; a token's cache is 4 L times KV heads times
  head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rredcot_plugin.dry_run.architecture import Architecture
from rredcot_plugin.planning.memory import ADAM, GB, cache_a_token, update_a_token
from rredcot_plugin.planning.models import ModelSizes, sizes_of


@dataclass(frozen=True)
class Needs:
    """Estimates in bytes per GPU, and tokens of probes per trace; ``probe_tokens`` is None where nothing is probed.

    ``resting`` is what is left of ``state`` on the GPU during the rollout.
    """

    parameters: int
    state: float
    resting: float
    update: float
    update_tokens: int
    rollout: float
    cache_a_token: int
    probes: int | None
    probe_bound: int | None
    probe_tokens: float | None
    response: int
    in_pass: bool

    @property
    def peak(self) -> float:
        return max(self.state + self.update, self.resting + self.rollout)

    def lines(self, gpu_gb: float) -> list[tuple[str, str]]:
        """Name and text of each line of the report."""
        fits = "fits" if self.peak <= gpu_gb * GB else "does NOT fit"
        moved = "" if self.resting == self.state else f", {self.resting / GB:.1f} GB during the rollout"
        found = [
            ("parameters", f"{self.parameters / 1e6:,.1f} million"),
            ("training state", f"{self.state / GB:.1f} GB per GPU{moved}"),
            (
                "update",
                f"{self.update / GB:.1f} GB per GPU on top, for micro-batches of {self.update_tokens:,} tokens",
            ),
            (
                "rollout",
                f"{self.rollout / GB:.1f} GB per GPU; KV cache {self.cache_a_token / 1e3:.0f} kB per token",
            ),
            ("peak", f"{self.peak / GB:.1f} GB per GPU: {fits} in {gpu_gb:g} GB (estimated)"),
        ]
        return found + ([("probes", self._probes())] if self.probe_bound is not None else [])

    def _probes(self) -> str:
        assert self.probe_bound is not None and self.probes is not None
        if not self.in_pass:  # each repeats its prefix, half a trace on average
            return f"at most {self.probes} rows of their own per trace, together as long as {self.probes / 2:g} traces"
        share = self.probe_bound / self.response
        text = f"at most {self.probe_bound:,} tokens on top of a trace of {self.response:,} (+{share:.0%})"
        if self.probe_tokens is None:
            return text
        return f"{text}; +{self.probe_tokens / self.response:.0%} with answers as long as the data's"


def estimate(
    config: Any, settings: Any, architecture: Architecture, probe_length: float | None, gpu_gb: float
) -> Needs:
    """Estimate from verl's configuration, rredcot's options (None: another estimator) and the model's sizes.

    ``probe_length``: mean tokens of a probe with the data's answers, None where unknown.
    """
    from rredcot_plugin.integrations.verl.settings import why_not_in_pass

    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    sizes = sizes_of(architecture.config, architecture.name)
    length = data.max_prompt_length + data.max_response_length
    tokens = (
        actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu * length
    )
    split = actor.megatron.tensor_model_parallel_size if actor.strategy == "megatron" else 1
    bound = _most_probes(settings, data.max_response_length)
    state, resting = _state(config, sizes, architecture.config)
    return Needs(
        parameters=sizes.parameters,
        state=state,
        resting=resting,
        update=tokens * update_a_token(sizes, split),
        update_tokens=tokens,
        rollout=rollout.gpu_memory_utilization * gpu_gb * GB,
        cache_a_token=cache_a_token(sizes, rollout.tensor_model_parallel_size),
        probes=bound,
        probe_bound=None if bound is None else bound * settings.max_probe_tokens,
        probe_tokens=None if bound is None or probe_length is None else bound * probe_length,
        response=data.max_response_length,
        in_pass=settings is None or why_not_in_pass(config) is None,
    )


def _state(config: Any, sizes: ModelSizes, model_config: Any) -> tuple[float, float]:
    """The training state during the update, and during the rollout."""
    actor = config.actor_rollout_ref.actor
    weights, optimizer = _parts_of_state(config, sizes, model_config)
    own = actor.megatron if actor.strategy == "megatron" else actor.fsdp_config
    if actor.strategy == "fsdp2" and own.get("offload_policy"):
        return 0.0, 0.0
    resting = (0.0 if own.get("param_offload") else weights) + (0.0 if own.get("optimizer_offload") else optimizer)
    return weights + optimizer, resting


def _parts_of_state(config: Any, sizes: ModelSizes, model_config: Any) -> tuple[float, float]:
    """Weights with their gradients, and what the optimizer has beside them."""
    actor, model, parameters = config.actor_rollout_ref.actor, config.actor_rollout_ref.model, sizes.parameters
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if actor.strategy == "megatron":
        split = actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
        return 6 * parameters / split, 12 * parameters / gpus
    shared = actor.fsdp_config.fsdp_size
    shards = shared if 0 < shared <= gpus else gpus
    rank = model.get("lora_rank", 0) or 0
    if rank > 0:
        half = ADAM / 2 * _adapters(sizes, model_config.intermediate_size, rank) / shards
        return 4 * parameters / shards + half, half
    return ADAM / 2 * parameters / shards, ADAM / 2 * parameters / shards


def _adapters(sizes: ModelSizes, feed_forward: int, rank: int) -> int:
    """Parameters of LoRA adapters on all linear maps of a layer."""
    hidden, query, key = sizes.hidden, sizes.attention, sizes.kv
    maps: Sequence[int] = (hidden + query, hidden + key, hidden + key, query + hidden)
    return rank * sizes.layers * (sum(maps) + 3 * (hidden + feed_forward))


def _most_probes(settings: Any, response: int) -> int | None:
    """Probes of a trace at most: boundaries times proposals; None where nothing is probed."""
    from rredcot_plugin.values.base import proposal_limits

    if settings is None:
        return None
    limits = proposal_limits(settings.build_value_estimator())
    segmenter = settings.build_segmenter()
    segments = getattr(segmenter, "max_segments", None)
    if not limits or segments is None:
        return None
    segments = min(segments, max(1, response // getattr(segmenter, "min_segment_tokens", 1)))
    states = segments - 1 if settings.prior_from_group else segments
    return states * sum(limits.values())


def probe_length(
    settings: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], solutions: Sequence[str | None]
) -> float | None:
    """Mean tokens of the probes that put the data's answers to the model; None where nothing is known or none fits.

    Answers are those that ``solutions`` give in the format that most of them use, else the ground truths, unless
    ``proposals`` leaves these out.
    """
    from rredcot_plugin.text.encoding import ProbeEncoder

    if settings is None:
        return None
    encoder = ProbeEncoder(tokenizer, settings.bridge, settings.terminator, settings.max_probe_tokens)
    encoder.observe([text for text in solutions if text], [])
    answers = [encoder.answer_format.extract(text) if text else None for text in solutions]
    if settings.proposals != "group":
        answers = [own or str(row["reward_model"]["ground_truth"]) for own, row in zip(answers, rows, strict=True)]
    bridge = encoder.bridge_after("x")
    found = [encoder.encode(bridge, answer) for answer in answers if answer]
    lengths = [len(probe[0]) for probe in found if probe is not None]
    return sum(lengths) / len(lengths) if lengths else None
