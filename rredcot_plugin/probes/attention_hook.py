"""Replace a transformers model's attention function for a while, without touching the model.

transformers looks `config._attn_implementation` up in one registry at every attention call; replacing that
entry reaches every layer, through FSDP and PEFT wrappers alike. `eager` has no entry, but one that is added
is honoured; the function it stands for is then `eager_attention_forward` of the module's modeling file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rredcot_plugin.probes.errors import UnsupportedModelError
from rredcot_plugin.probes.kernels import AttentionOptions

FORKABLE_LAYERS = ("full_attention", "sliding_attention")

AttentionResult = tuple[Tensor, Tensor | None]
"""What transformers expects of an attention function: output (B, T, H, D_v), and weights or None."""


@dataclass(frozen=True)
class AttentionCall:
    """One layer's call: query (B, H, T, D), key and value (B, H_kv, T, D), rotary embedding applied."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    options: AttentionOptions
    run_original: Callable[[], AttentionResult]


def count_attention_layers(model: nn.Module) -> int:
    """Number of layers; UnsupportedModelError when one is neither full nor sliding-window attention."""
    config = _text_config(model)
    if most := getattr(config, "index_topk", None):
        raise UnsupportedModelError(
            f"layers choose the {most} tokens that they attend to; probes can fork {FORKABLE_LAYERS}."
        )
    types = set(getattr(config, "layer_types", None) or FORKABLE_LAYERS)
    if not types <= set(FORKABLE_LAYERS):
        raise UnsupportedModelError(f"layer types are {sorted(types)}; probes can fork {FORKABLE_LAYERS}.")
    return int(config.num_hidden_layers)


def rotates_by_length(model: nn.Module) -> bool:
    """Whether rotary angles depend on how long the longest sequence of a forward is (rope_type ``dynamic``, ``longrope``)."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    told = getattr(config, "rope_parameters", None) or {}
    kinds = [str(part.get("rope_type")) for part in (told, *told.values()) if isinstance(part, dict)]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds)


def check_angles(model: nn.Module) -> None:
    """UnsupportedModelError where probes would be rotated by other angles than the trunk whose keys they read."""
    if rotates_by_length(model):
        raise UnsupportedModelError(
            "the model's rotary angles depend on the length of what it reads (rope_type dynamic or longrope), and its "
            "trunk is longer than what a probe sees."
        )


@contextmanager
def override_attention(
    model: nn.Module, replacement: Callable[[AttentionCall], AttentionResult]
) -> Iterator[None]:
    """Send the attention calls of the model's layers to `replacement`.

    The registry is restored on exit, after an exception too. While this is open it also reaches other models
    that use the same implementation. Modules without a layer index (image towers) keep their attention.
    """
    from transformers import modeling_utils

    registry: Any = modeling_utils.ALL_ATTENTION_FUNCTIONS
    config = _text_config(model)
    name = str(config._attn_implementation)
    previous = registry.get(name)

    def entry(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> AttentionResult:
        original = previous or _eager_function(module)
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            return original(module, query, key, value, *args, **kwargs)
        return replacement(
            AttentionCall(
                layer,
                query,
                key,
                value,
                _read_options(config, kwargs),
                lambda: original(module, query, key, value, *args, **kwargs),
            )
        )

    registry[name] = entry
    try:
        yield
    finally:
        # setting an entry shadows the class-wide one; deleting it uncovers that again
        del registry[name]
        if registry.get(name) is not previous:
            registry[name] = previous


def _read_options(config: Any, kwargs: dict[str, Any]) -> AttentionOptions:
    if kwargs.get("s_aux") is not None:
        raise UnsupportedModelError("the model's attention has sinks (s_aux), which probes cannot fork.")
    if "sliding_window" not in kwargs and getattr(config, "sliding_window", None) is not None:
        # a few models put the window into the mask only, and masks are not read here
        raise UnsupportedModelError("the model does not tell its attention function its sliding window.")
    # transformers' own sdpa function drops `softcap`; the same model must give the same numbers here
    softcap = None if config._attn_implementation == "sdpa" else kwargs.get("softcap")
    return AttentionOptions(kwargs.get("scaling"), kwargs.get("sliding_window"), softcap)


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise UnsupportedModelError(f"{type(model).__name__} is not a transformers model: it has no config.")
    return config.get_text_config()


def _eager_function(module: nn.Module) -> Callable[..., AttentionResult]:
    # the class of a wrapped module (FSDP) derives from the modeling file's class
    for cls in type(module).__mro__:
        function: Any = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModelError(f"no eager_attention_forward was found for {type(module).__name__}.")
