"""`rredcot plan`: sizes of configurations that say them in their own way, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from rredcot_plugin.planning.models import find_sizes


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 48}, 96),
        ({"model_type": "qwen3_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 4}, 8),
        ({"model_type": "llama", "intermediate_size": 48}, 48),
        ({"model_type": "doge", "intermediate_size": 48}, 48),  # has numbers of experts, and is_moe=False
        ({"model_type": "gemma3n_text", "intermediate_size": [24, 32], "num_kv_shared_layers": 0}, 32),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_token_passes_through_all_active_experts(config: dict[str, Any], width: int) -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    assert find_sizes("small", {"small": {**small, "vocab_size": 300, **config}}).feed_forward == width


def test_of_a_model_that_sees_the_language_model_is_planned() -> None:
    text = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "head_dim": 4,
    }
    sizes = find_sizes("seeing", {"seeing": {"model_type": "gemma3", "text_config": text}})
    assert (sizes.layers, sizes.hidden, sizes.feed_forward) == (2, 8, 16)


@pytest.mark.parametrize(
    ("config", "lacks"),
    [
        ({"model_type": "gpt_neo"}, "gpt_neo.*NoneType"),
        ({"model_type": "gpt2"}, "gpt2.*'intermediate_size'"),
        ({"model_type": "ministral", "head_dim": None}, "ministral.*NoneType"),
    ],
)
def test_a_configuration_without_a_size_is_refused_with_the_way_out(config: dict[str, Any], lacks: str) -> None:
    with pytest.raises(ValueError, match=f"^model=odd: its configuration .*{lacks}.* add it to the config.json"):
        find_sizes("odd", {"odd": config})
