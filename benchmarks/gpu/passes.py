"""Random Qwen3-shaped models, and the passes that are compared: a trace alone, and with probes in four ways.

No pass ever holds the vocabulary-sized logits of a trace: the LM head runs over `HEAD_ROWS` rows at once. (The
probes' own logits exist at once, K x A rows.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import transformers
from torch import Tensor, nn

from gpu.flex import flex_packed
from rredcot_plugin.probes import build_layout, capture_trunk, forward_packed, forward_probes
from rredcot_plugin.probes.layout import ProbeSpec
from rredcot_plugin.probes.log_probs import selected_log_probs

HEAD_ROWS = 1024
SEED = 0

TracePass = Callable[[], tuple[Tensor, Tensor | None]]
"""Runs; gives the trace's log-probs (T - 1,) and, but for `plain`, those of the probes (K,), float32."""


@dataclass(frozen=True)
class Shape:
    """What of a Qwen3 configuration decides speed."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int = 151936


SHAPES = {
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 128, 3072),
    "qwen3-4b": Shape(2560, 36, 32, 8, 128, 9728),
    "tiny": Shape(64, 2, 4, 2, 16, 128, 512),
}


@dataclass(frozen=True)
class Work:
    """One trace of random tokens with K probes after sorted random boundaries."""

    trace: list[int]
    specs: list[ProbeSpec]
    ids: Tensor
    """The trace on the device."""


def build_model(shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Random weights, made on the device. float32 copies come from this one by `.float()`: the other way round
    would round the rotary frequencies to bfloat16."""
    config = transformers.Qwen3Config(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, max_position_embeddings=65536, tie_word_embeddings=True,
        initializer_range=shape.hidden**-0.5,  # logits of size 1: what a token sees shows in its log-probs
    )  # fmt: skip
    torch.manual_seed(SEED)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


def draw_work(vocab: int, tokens: int, probes: int, probe_tokens: int, device: torch.device) -> Work:
    """Seeded; the last probe stands after the whole trace."""
    boundaries = sorted([*random.Random(SEED).sample(range(1, tokens), probes - 1), tokens])
    return work_at(vocab, tokens, boundaries, probe_tokens, device)


def work_at(vocab: int, tokens: int, boundaries: Sequence[int], probe_tokens: int, device: torch.device) -> Work:
    """Random tokens with a probe at each of these boundaries."""
    rng = random.Random(SEED)
    specs: list[ProbeSpec] = [(b, [rng.randrange(vocab) for _ in range(probe_tokens)], 0) for b in boundaries]
    trace = [rng.randrange(vocab) for _ in range(tokens)]
    return Work(trace, specs, torch.tensor(trace, device=device))


def make_passes(model: nn.Module, work: Work, names: list[str]) -> dict[str, TracePass]:
    """Passes by name: `plain`, `cached`, `packed`, either with `@N` for N probe tokens per attention call
    (default: the backend's own), and `flex`, FlexAttention over trace and probes packed."""
    passes: dict[str, TracePass] = {}
    for name in names:
        backend, _, group_size = name.partition("@")
        options = {"group_size": int(group_size)} if group_size else {}
        passes[name] = partial(BACKENDS[backend], model, work, **options)
    return passes


def plain(model: nn.Module, work: Work) -> tuple[Tensor, None]:
    ids = work.ids
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    return trace_log_probs(model, hidden, ids), None


def cached(model: nn.Module, work: Work, **options: int) -> tuple[Tensor, Tensor]:
    layout = build_layout([work.specs], [work.trace])
    with capture_trunk(model) as captured:
        trace, _ = plain(model, work)
    return trace, forward_probes(model, captured, layout, [(0, 0, len(work.trace))], **options)


def packed(model: nn.Module, work: Work, **options: int) -> tuple[Tensor, Tensor]:
    layout, ids = build_layout([work.specs], [work.trace]), work.ids
    no_rows = torch.empty(0, dtype=torch.int64, device=ids.device)

    def run() -> Tensor:
        return forward_packed(model, [ids], layout, trunk_rows=no_rows, **options)[1]

    hidden, probes = with_hidden_states(model, run)
    return trace_log_probs(model, hidden[: ids.numel()], ids), probes


def flex(model: nn.Module, work: Work) -> tuple[Tensor, Tensor]:
    layout, ids = build_layout([work.specs], [work.trace]), work.ids
    hidden, probes = with_hidden_states(model, partial(flex_packed, model, ids, layout))
    return trace_log_probs(model, hidden[: ids.numel()], ids), probes


BACKENDS: dict[str, Callable] = {"plain": plain, "cached": cached, "packed": packed, "flex": flex}


def with_hidden_states(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The last hidden states (T, hidden) of the one model call inside `run`, and its result."""
    seen: list[Tensor] = []
    handle = model.model.register_forward_hook(lambda module, args, out: seen.append(out.last_hidden_state[0]))
    try:
        result = run()
    finally:
        handle.remove()
    [hidden] = seen
    return hidden, result


def trace_log_probs(model: nn.Module, hidden: Tensor, ids: Tensor) -> Tensor:
    """log pi of each token but the first: (T, hidden) and (T,) -> (T - 1,) float32, `HEAD_ROWS` rows at once."""
    rows, targets = hidden[:-1].split(HEAD_ROWS), ids[1:].split(HEAD_ROWS)
    return torch.cat([selected_log_probs(model.lm_head(r), t) for r, t in zip(rows, targets, strict=True)])
