"""Bytes on a GPU, from sizes; shared with `rredcot dry-run`. GB are 10⁹ bytes. All of it is estimated.

- training state: 16 · parameters / GPUs that share it (fp32 weights, gradients, two Adam moments).
- update, a token of a micro-batch: 2 L h + 10 V + 16 h + 8 f (checkpoints between layers, logits in two precisions with
  their gradient, the activations of one layer; f: feed-forward width).
- forward alone, a token: 6 V + 16 h + 8 f (logits in two precisions, one layer).
- keys and values of a token in two bytes: 4 L · kv; rollout engines keep 2 L · latent of multi-head latent attention
  instead, all of it on each GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.planning.models import ModelSizes
from rredcot_plugin.planning.setup import Setup

GB = 1e9
ADAM = 16
"""Bytes a parameter: fp32 weights, gradients and two moments."""

UTILISATION = 0.9
"""Share of a GPU that the rollout engine takes while it is awake: assumed."""


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes on one GPU; ``added`` is what probes put on top, 0 elsewhere."""

    name: str
    bytes: float
    added: float
    note: str


def cache_a_token(sizes: ModelSizes, tensor_parallel: int = 1) -> int:
    """Bytes of one token in a rollout engine's cache on one GPU."""
    if sizes.latent:
        return 2 * sizes.layers * sizes.latent
    return keys_a_token(sizes) // tensor_parallel


def keys_a_token(sizes: ModelSizes) -> int:
    """Bytes of keys and values of one token in full."""
    return 4 * sizes.layers * sizes.kv


def layer_a_token(sizes: ModelSizes) -> float:
    """Bytes of the activations of one layer."""
    return 16 * sizes.hidden + 8 * sizes.feed_forward


def update_a_token(sizes: ModelSizes, vocabulary_split: int = 1) -> float:
    """Bytes of a token of the update's micro-batch."""
    checkpoints = 2 * sizes.layers * sizes.hidden
    return checkpoints + 10 * sizes.vocabulary / vocabulary_split + layer_a_token(sizes)


def phases(sizes: ModelSizes, setup: Setup) -> list[PhaseMemory]:
    """Memory by phase for micro-batches of one full-length trace, n = P + T tokens."""
    n, state = setup.prompt_length + setup.response_length, ADAM * sizes.parameters / setup.gpus
    weights = 2 * sizes.parameters / setup.tensor_parallel
    cache = max(0.0, UTILISATION * setup.gpu_bytes - weights)
    at_once = cache / (cache_a_token(sizes, setup.tensor_parallel) * n)
    forward = state + n * (6 * sizes.vocabulary + layer_a_token(sizes))
    return [
        PhaseMemory(
            "training state", state, 0.0, f"16 bytes per parameter, sharded over {setup.gpus} GPUs (FSDP)"
        ),
        PhaseMemory(
            "rollout weights", weights, 0.0, f"leaves a cache for {at_once:,.1f} full-length traces at once"
        ),
        PhaseMemory("log-prob pass", forward, probe_bytes(sizes, setup), f"a trace of {n:,} tokens at a time"),
        PhaseMemory("update", state + n * update_a_token(sizes), 0.0, f"a trace of {n:,} tokens at a time"),
    ]


def probe_bytes(sizes: ModelSizes, setup: Setup) -> float:
    """What the probes of one trace add to its log-prob pass.

    ``cached`` keeps keys and values of the trace, 4 L · kv · n; ``cached`` and ``packed`` both have the logits of all
    probe tokens at once in two bytes, and one layer of them. ``batched`` rows are no longer than a trace: 0.
    """
    if setup.probes_a_trace == 0 or setup.backend == "batched":
        return 0.0
    tokens = setup.probes_a_trace * setup.probe_tokens
    kept = (setup.prompt_length + setup.response_length) * keys_a_token(sizes) if setup.backend == "cached" else 0
    return kept + tokens * (2 * sizes.vocabulary + layer_a_token(sizes))
