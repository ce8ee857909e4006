"""The laboratory's models: the demo's reasoner, and a smaller one that saw too few solutions, all of them right."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lab.store import Store
from lab.tasks import CLEAN, CLEAN_SHARES, DEMO, clean_examples
from rredcot_plugin.demo.reasoner import CHECKPOINT, build_tokenizer, prompt_text
from rredcot_plugin.demo.train_reasoner import batches, train


@dataclass(frozen=True)
class CleanTraining:
    """How the under-trained model comes about; ``steps`` of ``batch`` solutions, each seen once."""

    steps: int = 2200
    batch: int = 32
    rate: float = 4e-3
    width: int = 96
    layers: int = 3
    seed: int = 0


def build_clean(tokenizer: Any, spec: CleanTraining) -> Qwen3ForCausalLM:
    """A randomly initialised float32 Qwen3, of 0.4M parameters by default."""
    torch.manual_seed(spec.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.width,
        intermediate_size=3 * spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def train_clean(tokenizer: Any, spec: CleanTraining) -> Qwen3ForCausalLM:
    """Train on clean solutions of the training split."""
    model = build_clean(tokenizer, spec)
    pairs = list(clean_examples(spec.steps * spec.batch, spec.seed))
    prompts = [prompt_text(tokenizer, question) for question, _ in pairs]
    texts = [f"{p}{solution}{tokenizer.eos_token}" for p, (_, solution) in zip(prompts, pairs, strict=True)]
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    examples = list(zip(tokenizer(texts)["input_ids"], lengths, strict=True))
    train(model, list(batches(examples, spec.batch, spec.seed)), spec.rate)
    return model


def load_models(store: Store, spec: CleanTraining, wanted: set[str]) -> dict[str, Any]:
    """The models that are asked for, in eval mode; the clean one is trained unless the store has it."""
    models: dict[str, Any] = {}
    if DEMO in wanted:
        models[DEMO] = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    if CLEAN in wanted:
        tokenizer = build_tokenizer()
        made = store.tensors(
            "model_clean",
            {**asdict(spec), **CLEAN_SHARES},
            lambda: dict(train_clean(tokenizer, spec).state_dict()),
        )
        models[CLEAN] = build_clean(tokenizer, spec)
        models[CLEAN].load_state_dict(made)
        models[CLEAN].eval()
    return models
