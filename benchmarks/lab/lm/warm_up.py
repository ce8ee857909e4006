"""The pretrained model after a short supervised warm-up on worked solutions of the three families, all of them right."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lab.devices import CPU
from lab.family import Family
from lab.lm.tasks import LM_FAMILIES
from lab.lm.weights import FILE, SHA256, build_unloaded, load_pretrained, load_pretrained_tokenizer, weights_folder
from lab.store import Store
from rredcot_plugin.demo.train_reasoner import Example, batches, train
from rredcot_plugin.tiny.reasoner import prompt_text

TIED = "lm_head.weight"
"""The same tensor as the embeddings."""


@dataclass(frozen=True)
class WarmUp:
    """``examples`` of each family, each seen once; too few of them on purpose, so that a model makes its own mistakes."""

    examples: dict[str, int] = field(default_factory=lambda: {"totals": 760, "words": 520, "functions": 300})
    batch: int = 16
    rate: float = 3e-4
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the warmed model depends on, the pretrained weights included."""
        return {**asdict(self), "weights": [FILE, SHA256]}

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]


def examples_of(tokenizer: Any, spec: WarmUp) -> list[Example]:
    """Tokens of prompt and clean solution, with the length of the prompt."""
    rng, found = random.Random(spec.seed), []
    for name, size in spec.examples.items():
        family: Family = LM_FAMILIES[name]
        for question in family.problems("train", size, spec.seed):
            prompt = prompt_text(tokenizer, question.text)
            text = f"{prompt}{family.write(question, rng)}{tokenizer.eos_token}"
            found.append((tokenizer(text)["input_ids"], len(tokenizer(prompt)["input_ids"])))
    rng.shuffle(found)
    return found


def warmed_model(store: Store, spec: WarmUp, device: str = CPU) -> Any:
    """The model after the warm-up, in eval mode, on ``device``; from the store where that has it, else trained there, on a
    CPU in about ten minutes.

    Raises:
        WeightsError: the pretrained weights are missing or changed.
    """
    folder = weights_folder()
    tokenizer = load_pretrained_tokenizer(folder)

    def make() -> dict[str, torch.Tensor]:
        model = load_pretrained(folder).to(device)
        model.config.pad_token_id = tokenizer.pad_token_id
        # in float32 arithmetic the number of threads moves the last bits: all of them, since this is the long part
        before = torch.get_num_threads()
        torch.set_num_threads(max(before, 2))
        train(model, list(batches(examples_of(tokenizer, spec), spec.batch, spec.seed)), spec.rate)
        torch.set_num_threads(before)
        return {name: tensor.cpu() for name, tensor in model.state_dict().items() if name != TIED}

    found = store.tensors("model_smollm2", spec.settings, make)
    model = build_unloaded(folder)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.load_state_dict(found, strict=False)
    return model.to(device).eval()
