"""The laboratory's models: the demo's reasoner, smaller ones that saw too few solutions, all of them right, and those
after they were taught a wrong habit; and a real language model after a warm-up (lab/lm)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from lab import parts
from lab.devices import CPU
from lab.family import Family
from lab.lm.tasks import LM
from lab.lm.warm_up import WarmUp, warmed_model
from lab.lm.weights import load_pretrained_tokenizer, weights_folder
from lab.running_sums import CHAIN_MINUSES, CHAIN_STEPS
from lab.store import Store
from lab.tasks import (
    CHAIN_SKILL,
    CHAINS,
    CLEAN,
    CLEAN_SHARES,
    DEMO,
    FAMILIES,
    HABITS,
    PARTS,
    PARTS_SKILL,
    SHARES,
    WORDY,
    WORDY_SKILL,
    clean_examples,
    family_examples,
    habit_examples,
)
from lab.wordy import FREE_LINES, MINUSES, TERMS
from rredcot_plugin.demo.train_reasoner import batches, train
from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import build_model, build_tokenizer, prompt_text

HABIT_STEPS, HABIT_RATE, HABIT_SEED = 250, 1e-3, 7
"""Of the second training, on solutions with the habit."""
TAUGHT: dict[str, tuple[Callable[[int, int], Iterator[tuple[str, str]]], dict[str, Any]]] = {
    CLEAN: (clean_examples, dict(CLEAN_SHARES)),
    CHAIN_SKILL: (family_examples(CHAINS), {"lines": CHAIN_STEPS, "minuses": CHAIN_MINUSES}),
    WORDY_SKILL: (family_examples(WORDY), {"terms": TERMS, "minuses": MINUSES, "free_lines": FREE_LINES}),
    PARTS_SKILL: (family_examples(PARTS), {"parts": parts.PARTS, "minuses": parts.MINUSES}),
}
"""Models taught from nothing: on what, and what that depends on."""
SPOILT = {HABITS: CLEAN, CHAINS: CHAIN_SKILL, WORDY: WORDY_SKILL, PARTS: PARTS_SKILL, SHARES: PARTS_SKILL}
"""Models that were taught a habit, named as their family, and what they were before."""

LAST_LAYERS = 2
"""Of a language model whose whole gradients are too many to keep: 7.1M of SmolLM2's 134.5M parameters."""


@dataclass(frozen=True)
class CleanTraining:
    """How an under-trained model comes about; ``steps`` of ``batch`` solutions, each seen once."""

    steps: int = 2200
    batch: int = 32
    rate: float = 4e-3
    width: int = 96
    layers: int = 3
    seed: int = 0


def build_clean(tokenizer: Any, spec: CleanTraining) -> Qwen3ForCausalLM:
    """A randomly initialised float32 Qwen3, of 0.4M parameters by default."""
    return build_model(
        tokenizer, spec.seed, width=spec.width, layers=spec.layers, heads=6, kv_heads=3, head_dim=16
    )


def train_on(model: Qwen3ForCausalLM, pairs: list[tuple[str, str]], batch: int, rate: float) -> None:
    """One pass over questions and solutions, in place."""
    tokenizer = build_tokenizer()
    prompts = [prompt_text(tokenizer, question) for question, _ in pairs]
    texts = [f"{p}{solution}{tokenizer.eos_token}" for p, (_, solution) in zip(prompts, pairs, strict=True)]
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    train(model, list(batches(list(zip(tokenizer(texts)["input_ids"], lengths, strict=True)), batch, 0)), rate)


def small_settings(name: str, spec: CleanTraining) -> dict[str, Any]:
    """Everything that a small model depends on."""
    if name in TAUGHT:
        return {**asdict(spec), **TAUGHT[name][1]}
    taught = FAMILIES[name].habit
    assert taught is not None
    habit = {"habit": taught.share, "steps_of_habit": HABIT_STEPS, "rate_of_habit": HABIT_RATE}
    return {**small_settings(SPOILT[name], spec), **habit}


def small_model(name: str, store: Store, spec: CleanTraining) -> Qwen3ForCausalLM:
    """A small model in eval mode, trained unless the store has it."""
    model = build_clean(build_tokenizer(), spec)

    def make() -> dict[str, torch.Tensor]:
        if name in TAUGHT:
            train_on(model, list(TAUGHT[name][0](spec.steps * spec.batch, spec.seed)), spec.batch, spec.rate)
        else:
            model.load_state_dict(small_model(SPOILT[name], store, spec).state_dict())
            pairs = list(habit_examples(name, HABIT_STEPS * spec.batch, HABIT_SEED))
            train_on(model, pairs, spec.batch, HABIT_RATE)
        return dict(model.state_dict())

    model.load_state_dict(store.tensors(f"model_{name}", small_settings(name, spec), make))
    return model.eval()


def load_models(store: Store, spec: CleanTraining, wanted: set[str], device: str = CPU) -> dict[str, Any]:
    """The models that are asked for, in eval mode, on ``device``; all but the demo's are trained unless the store has them."""
    models: dict[str, Any] = {}
    if DEMO in wanted:
        models[DEMO] = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    if LM in wanted:
        models[LM] = warmed_model(store, WarmUp(), device)
    for name in wanted & {*TAUGHT, *SPOILT}:
        models[name] = small_model(name, store, spec)
    return {name: model.to(device) for name, model in models.items()}


def load_tokenizer(model: str) -> Any:
    """Of one of these models."""
    return load_pretrained_tokenizer(weights_folder()) if model == LM else build_tokenizer()


def measure_last_layers(model: Any, layers: int = LAST_LAYERS) -> None:
    """Only the last decoder layers and the final norm ask for a gradient from here on."""
    model.requires_grad_(False)
    for part in (*model.model.layers[-layers:], model.model.norm):
        part.requires_grad_(True)


def model_digest(model: str, spec: CleanTraining) -> str:
    """Of all that makes a model what it is."""
    if model == DEMO:
        content = (CHECKPOINT / "model.safetensors").read_bytes()
    elif model == LM:
        content = WarmUp().digest.encode()
    else:
        content = json.dumps(small_settings(model, spec), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def folder_name(family: Family, spec: CleanTraining) -> str:
    """Where a family's files go, so that those of another model, or of a model that was made in another way, are not taken
    for this one's."""
    return f"{family.name}_{WarmUp().digest if family.model == LM else model_digest(family.model, spec)}"


def weights_digest(model: torch.nn.Module) -> str:
    """What tells two draws of a model apart: its settings do not, since arithmetic differs between machines."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:12]
