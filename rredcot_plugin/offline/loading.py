"""A model and its tokenizer, from a folder, the Hugging Face cache or the hub, and where the model runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rredcot_plugin.offline.hub import first_line, hub_answers

DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where a model runs and in which type. ``auto``: the GPU where there is one, bfloat16 on it, else float32."""

    device: str
    dtype: str

    @classmethod
    def choose(cls, device: str = "auto", dtype: str = "auto") -> Placement:
        """Raises ValueError naming what is allowed, or that no GPU is there."""
        if device not in DEVICES:
            raise ValueError(f"device={device}: expected one of {', '.join(DEVICES)}")
        if dtype != "auto" and dtype not in DTYPES:
            raise ValueError(f"dtype={dtype}: expected one of auto, {', '.join(DTYPES)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda: no GPU that torch can use here; use --device cpu")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        return cls(device, dtype)


def load_tokenizer(name: str, chat_template: Path | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model, with another chat template where one is given; ValueError if it cannot be read."""
    from transformers import AutoTokenizer

    local = _only_local(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, trust_remote_code=trust_remote_code, local_files_only=local
        )
    except Exception as error:
        raise ValueError(f"model={name}: its tokenizer cannot be loaded: {_why(local, error)}") from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = chat_template.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"chat-template={chat_template}: cannot be read: {error}") from error
    return tokenizer


def load_model(name: str, placement: Placement, trust_remote_code: bool = False) -> nn.Module:
    """The model in eval mode, in its place; ValueError if it cannot be loaded."""
    from transformers import AutoModelForCausalLM

    local = _only_local(name)
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            name, dtype=DTYPES[placement.dtype], trust_remote_code=trust_remote_code, local_files_only=local
        )
    except Exception as error:
        raise ValueError(f"model={name}: cannot be loaded as a causal LM: {_why(local, error)}") from error
    return model.to(placement.device).eval()


def _only_local(name: str) -> bool:
    """A folder may name code or a base model of the hub, so it is not asked about."""
    return not Path(name).is_dir() and not hub_answers()


def _why(local: bool, error: Exception) -> str:
    if local and isinstance(error, OSError):
        return "no such folder, not complete in the Hugging Face cache, and the hub does not answer"
    return first_line(error)
