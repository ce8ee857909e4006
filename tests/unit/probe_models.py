"""Tiny random causal LMs, one per attention shape that the probes have to get right."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCAB_SIZE = 97
WINDOW = 7
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    # far from the usual 0.02: with near-uniform outputs a wrong mask would change nothing
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_HYBRID_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, {"num_key_value_heads": 2}),
    "qwen3": (Qwen3Config, {"num_key_value_heads": 2, "head_dim": 16}),
    "llama": (LlamaConfig, {"num_key_value_heads": 4}),
    "mistral": (MistralConfig, {"num_key_value_heads": 2, "sliding_window": WINDOW, "head_dim": 8}),
    "gemma2": (Gemma2Config, {
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW, "layer_types": _HYBRID_LAYERS,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8,
    }),
    "gemma3": (Gemma3TextConfig, {
        "num_key_value_heads": 1, "head_dim": 8, "sliding_window": WINDOW, "layer_types": _HYBRID_LAYERS,
        "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8,
    }),
    # what OpenRLHF sets in every model that balances its experts
    "qwen3_moe": (Qwen3MoeConfig, {
        "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "output_router_logits": True,
    }),
}  # fmt: skip
SHAPES = tuple(_CONFIGS)


def tiny_model(shape: str, attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    """A float32 model in eval mode; `shape` is one of SHAPES."""
    config_class, options = _CONFIGS[shape]
    torch.manual_seed(seed)
    config = config_class(**(_COMMON | options))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.float().eval()


def random_ids(length: int, seed: int) -> list[int]:
    """`length` token ids, none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
    return ids
