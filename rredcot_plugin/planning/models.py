"""The sizes of a model that its cost depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rredcot_plugin.offline.hub import first_line
from rredcot_plugin.registry import nearest

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE = ("num_experts_per_tok", "moe_topk")
"""What configurations call the number of routed experts, and of those that a token passes through."""


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a causal language model; of a mixture of experts the active part where a token is concerned.

    ``parameters`` counts all; ``layer_parameters`` those that a token passes through between embedding and LM head;
    the LM head has ``vocabulary`` × ``hidden``, whether tied or not. ``attention`` is heads × head size, ``kv`` the
    same of keys (and of values). ``latent`` is what multi-head latent attention caches of a token in a layer in place
    of keys and values, 0 elsewhere.
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
    latent: int = 0


def sizes_of(config: Any, name: str) -> ModelSizes:
    """Sizes of a transformers configuration; parameters are counted on a model without memory."""
    heads = config.num_attention_heads
    size, key_heads, latent = _head(config, heads)
    total, in_layers = count_parameters(config)
    return ModelSizes(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        attention=heads * size,
        kv=key_heads * size,
        feed_forward=_feed_forward(config),
        vocabulary=config.vocab_size,
        parameters=total,
        layer_parameters=in_layers,
        positions=getattr(config, "max_position_embeddings", None),
        latent=latent,
    )


def _head(config: Any, heads: int) -> tuple[int, int, int]:
    """Size of a head, heads of keys, and what is cached of a token in place of keys and values (0: these).

    Latent attention makes keys and values of every head from ``kv_lora_rank`` numbers, and caches these with the part of
    the key that knows its place. Its keys are longer than its values: a head has the mean size of both.
    """
    if rank := getattr(config, "kv_lora_rank", None):
        key = config.qk_nope_head_dim + config.qk_rope_head_dim
        return (key + config.v_head_dim) // 2, heads, rank + config.qk_rope_head_dim
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return size, getattr(config, "num_key_value_heads", None) or heads, 0


def _feed_forward(config: Any) -> int:
    """Width of the feed-forward part that a token passes through, in the widest layer; of experts all that are active, whose
    width is ``intermediate_size`` where it has no key of its own."""
    active = _first(config, ACTIVE)
    if active and (_experts(config) or 1) > 1:
        return active * (getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
    width = config.intermediate_size
    return max(width) if isinstance(width, list) else int(width)


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of these that a configuration has; 0 counts."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), None)


def _experts(config: Any) -> int | None:
    """How many experts tokens are routed to; None where a key switches them off, as Doge's ``is_moe=False`` does."""
    return None if getattr(config, "is_moe", None) is False else _first(config, EXPERTS)


def _check_experts(config: Any) -> None:
    """ValueError where only one is known of how many experts there are and how many of them a token passes through."""
    experts, active = _first(config, EXPERTS), _first(config, ACTIVE)
    unknown = EXPERTS if active and experts is None else ACTIVE if (experts or 0) > 1 and active is None else ()
    if unknown:
        raise ValueError(
            f"expected one of {', '.join(unknown)} in its configuration ({config.model_type}) beside {active or experts} "
            "experts, got none: which parameters a token passes through is unknown; add it to config.json"
        )


def count_parameters(config: Any) -> tuple[int, int]:
    """All parameters, and those that a token passes through without embedding and LM head (torch's meta device).

    Of routed experts a token passes through ``num_experts_per_tok`` of all. They are parameters called so, or tensors
    of three dimensions of which the first counts experts.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parts = (model.get_input_embeddings(), model.get_output_embeddings())
    ends = {id(part.weight) for part in parts if part is not None}
    experts = _experts(config) or 1
    active = min(1.0, (_first(config, ACTIVE) or experts) / experts)
    total, in_layers = 0, 0.0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if id(parameter) not in ends:
            is_routed = ".experts." in name or (parameter.dim() == 3 and len(parameter) == experts)
            in_layers += parameter.numel() * (active if is_routed else 1.0)
    return total, round(in_layers)


def find_sizes(path: str, known: Mapping[str, Mapping[str, Any]]) -> ModelSizes:
    """Sizes of a folder with a config.json, of a name in the Hugging Face cache, or in ``known``; no network. Of a model
    that also sees or hears, its language model.

    Raises:
        ValueError: none of these has it, or its configuration lacks a size.
    """
    from transformers import AutoConfig

    try:
        if path in known:
            config = AutoConfig.for_model(**known[path])
        else:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, AttributeError) as error:
        if Path(path).is_dir():
            raise ValueError(f"model={path}: {first_line(error)}") from error
        raise ValueError(
            f"model={path}: not in the Hugging Face cache, no folder with a config.json, and not among "
            f"{', '.join(sorted(known))}.{nearest(path, list(known))}"
        ) from error
    try:
        config = config.get_text_config()
        _check_experts(config)
        return sizes_of(config, path)
    except ValueError as error:
        raise ValueError(f"model={path}: {first_line(error)}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"model={path}: its configuration ({config.model_type}) lacks a size that a plan needs ({first_line(error)}); "
            "add it to the config.json of a folder, and name the folder"
        ) from error
