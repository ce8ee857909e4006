"""The sizes of a model that its cost depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rredcot_plugin.registry import nearest


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a causal language model; of a mixture of experts the active part where a token is concerned.

    ``parameters`` counts all; ``layer_parameters`` those that a token passes through between embedding and LM head;
    the LM head has ``vocabulary`` × ``hidden``, whether tied or not. ``attention`` is heads × head size, ``kv`` the
    same of keys (and of values).
    """

    name: str
    layers: int
    hidden: int
    attention: int
    kv: int
    feed_forward: int
    vocabulary: int
    parameters: int
    layer_parameters: int
    positions: int | None = None


def sizes_of(config: Any, name: str) -> ModelSizes:
    """Sizes of a transformers configuration; parameters are counted on a model without memory."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    total, in_layers = count_parameters(config)
    return ModelSizes(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        attention=heads * size,
        kv=(getattr(config, "num_key_value_heads", None) or heads) * size,
        feed_forward=_feed_forward(config),
        vocabulary=config.vocab_size,
        parameters=total,
        layer_parameters=in_layers,
        positions=getattr(config, "max_position_embeddings", None),
    )


def _feed_forward(config: Any) -> int:
    """Width of the feed-forward part that a token passes through."""
    active = getattr(config, "num_experts_per_tok", None)
    expert = getattr(config, "moe_intermediate_size", None)
    return active * expert if active and expert else config.intermediate_size


def count_parameters(config: Any) -> tuple[int, int]:
    """All parameters, and those that a token passes through without embedding and LM head (torch's meta device).

    Of routed experts a token passes through ``num_experts_per_tok`` of all.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parts = (model.get_input_embeddings(), model.get_output_embeddings())
    ends = {id(part.weight) for part in parts if part is not None}
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1
    active = (getattr(config, "num_experts_per_tok", None) or experts) / experts
    total, in_layers = 0, 0.0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if id(parameter) not in ends:
            in_layers += parameter.numel() * (active if ".experts." in name else 1.0)
    return total, round(in_layers)


def find_sizes(path: str, known: Mapping[str, Mapping[str, Any]]) -> ModelSizes:
    """Sizes of a folder with a config.json, of a name in the Hugging Face cache, or in ``known``; no network.

    Raises:
        ValueError: none of these has it, or it is no causal language model.
    """
    from transformers import AutoConfig

    try:
        if path in known:
            config = AutoConfig.for_model(**known[path])
        else:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
        return sizes_of(config, path)
    except (OSError, ValueError, AttributeError) as error:
        if Path(path).is_dir():
            raise ValueError(f"model={path}: {_first_line(error)}") from error
        raise ValueError(
            f"model={path}: not in the Hugging Face cache, no folder with a config.json, and not among "
            f"{', '.join(sorted(known))}.{nearest(path, list(known))}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
