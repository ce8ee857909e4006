"""The recipe's model: its configuration and tokenizer where they can be had, its size, and a tiny random one like it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.offline.hub import first_line, hub_answers
from rredcot_plugin.planning.models import count_parameters

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
"""Sizes of the tiny model; a key that the architecture does not have is left out."""

HEADS = 4
VOCABULARY = 2000
"""Tokens of the stand-in tokenizer."""

SEED = 0
"""Of the tiny model's weights: two dry runs of a recipe practise the same model."""

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


@dataclass(frozen=True)
class Architecture:
    """A model's configuration; ``tokenizer`` is None and ``note`` says why where it could not be had."""

    name: str
    config: Any
    tokenizer: Any
    note: str

    def with_tokenizer(self, texts: Iterable[str]) -> Architecture:
        """With a stand-in tokenizer, trained on ``texts``, where the real one is missing."""
        return self if self.tokenizer is not None else replace(self, tokenizer=train_tokenizer(texts))

    @property
    def parameters(self) -> int:
        return count_parameters(self.config)[0]


def find_architecture(path: str, trust_remote_code: bool = False) -> Architecture:
    """The configuration and tokenizer of a folder, of the Hugging Face cache, of the hub, or as known to rredcot.

    Raises:
        RecipeError: none of these has it, or its tokenizer has no chat template.
    """
    from transformers import AutoConfig, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    is_folder = Path(path).is_dir()
    if not is_folder and path.startswith(("/", ".", "~")):
        raise RecipeError(f"actor_rollout_ref.model.path={path}: no such folder (MODEL_PATH)")
    why = "the hub does not answer"
    for local in (True, False):
        if not local and (is_folder or not hub_answers()):
            break
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=local, **options)
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local, **options)
        except (OSError, ValueError) as error:
            if is_folder:
                raise RecipeError(f"actor_rollout_ref.model.path={path}: {error}") from error
            if not local:
                why = f"the hub says: {first_line(error)}"
            continue
        if not tokenizer.chat_template:
            raise RecipeError(
                f"actor_rollout_ref.model.path={path}: its tokenizer has no chat template; set one with "
                "actor_rollout_ref.model.custom_chat_template"
            )
        return Architecture(path, config, tokenizer, "")
    return _known(path, why)


def known_architectures() -> dict[str, dict[str, Any]]:
    """Name on the hub -> what transformers' ``AutoConfig.for_model`` takes, for models known without a network."""
    table: dict[str, dict[str, Any]] = json.loads(
        resources.files(__package__).joinpath("architectures.json").read_text("utf-8")
    )
    return table


def _known(path: str, why: str) -> Architecture:
    from transformers import AutoConfig

    table = known_architectures()
    if path not in table:
        raise RecipeError(
            f"actor_rollout_ref.model.path={path}: no folder, not in the Hugging Face cache, and {why}; name a folder with its "
            "config.json and tokenizer (MODEL_PATH)"
        )
    config = AutoConfig.for_model(**table[path])
    note = f"sizes as known to rredcot, a stand-in tokenizer: {why}"
    return Architecture(path, config, None, note)


def write_tiny(architecture: Architecture, folder: Path) -> None:
    """Save a random model of the same architecture, two layers of width 64, with its tokenizer.

    The weights are those of ``SEED``; the caller's random numbers go on as if nothing had been drawn.

    Raises:
        RecipeError: transformers cannot build the architecture at this size.
    """
    from transformers import AutoModelForCausalLM

    tokenizer = architecture.tokenizer
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = AutoModelForCausalLM.from_config(tiny_config(architecture.config, tokenizer))
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        kind = architecture.config.model_type
        raise RecipeError(f"{architecture.name}: no tiny {kind} could be built: {error}") from error
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_config(config: Any, tokenizer: Any) -> Any:
    """The configuration with ``TINY`` sizes, as many groups of heads as heads allow, and the tokenizer's ids."""
    values = config.to_dict()
    values |= {key: size for key, size in TINY.items() if values.get(key) is not None}
    heads = values.get("num_attention_heads")
    if heads and values.get("num_key_value_heads"):
        values["num_key_value_heads"] = max(1, HEADS * values["num_key_value_heads"] // heads)
    values["num_attention_heads"] = HEADS
    for key in ("layer_types", "max_window_layers"):  # follow from the number of layers
        values.pop(key, None)
    values |= {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "float32",
    }
    return type(config).from_dict(values)


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer of ``VOCABULARY`` tokens with a ChatML template: it knows every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from rredcot_plugin.tiny.reasoner import CHAT_TEMPLATE

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=1_000_000,
    )
