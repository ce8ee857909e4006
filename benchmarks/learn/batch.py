"""Rollouts of one step, their judgement by the task's own checks, and their log-probs with a gradient."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lab.family import Family, Question
from lab.models import CleanTraining, load_models, load_tokenizer
from lab.rollouts import Actor, LabBatch, encode
from lab.sampling import Prefix, continuations
from lab.store import Store

from learn.fast_sampling import folded
from rredcot_plugin.offline.encode import EncodedRow
from rredcot_plugin.probes.squares import sum_pi_squared


def first_actor(family: Family, store: Store, clean_steps: int, device: str) -> Actor:
    """The family's model as training finds it, from the store where that has it."""
    model = load_models(store, CleanTraining(steps=clean_steps), {family.model}, device)[family.model]
    return Actor(family, model, load_tokenizer(family.model))


def seed_of(run_seed: int, purpose: str, step: int) -> int:
    """A seed of its own for each purpose and step of a run."""
    return int.from_bytes(hashlib.sha256(f"{run_seed} {purpose} {step}".encode()).digest()[:6])


def sample(
    actor: Actor, prefixes: Sequence[Prefix], budgets: Sequence[int], copies: int, seed: int
) -> list[list[list[int]]]:
    """``copies`` continuations of every prefix at temperature 1."""
    with folded(actor.model):
        return continuations(actor.model, prefixes, budgets, copies, seed)


def rollouts(actor: Actor, questions: Sequence[Question], group: int, seed: int) -> list[EncodedRow]:
    """``group`` rewarded responses to each question; the question's number is the group."""
    prompts = [actor.prompt(question) for question in questions]
    found = sample(actor, prompts, [actor.family.max_response_tokens] * len(prompts), group, seed)
    actor.judge_ahead(questions, found)
    return [
        encode(actor, question, prompt, response, f"{number}")
        for number, (question, prompt, own) in enumerate(zip(questions, prompts, found, strict=True))
        for response in own
    ]


def judge(actor: Actor, questions: Sequence[Question], rows: Sequence[EncodedRow]) -> dict[str, float]:
    """Shares of rewarded responses, of those whose every line is right, and of rewarded ones with a wrong line."""
    rewards = np.array([row.row.reward for row in rows])
    right = np.array(
        [actor.family.first_mistake(q, row.text) is None for q, row in zip(questions, rows, strict=True)]
    )
    return {
        "accuracy": float(rewards.mean()),
        "all_right": float(right.mean()),
        "lucky": float(((rewards > 0) & ~right).mean()),
    }


def response_log_probs(model: Any, batch: LabBatch) -> torch.Tensor:
    """Log-probs (B, T) of the responses' tokens in nats, with a gradient; 0 where there is no token."""
    logits, ids = _logits(model, batch)
    return _of_responses(torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0], batch)


@torch.no_grad()
def with_squares(model: Any, batch: LabBatch) -> LabBatch:
    """The batch with Σ_v π_v² of the distributions that its tokens were drawn from, by a pass of their own."""
    logits, _ = _logits(model, batch)
    found = sum_pi_squared(logits.flatten(0, 1), logits.new_ones(logits[..., 0].numel())).view(logits.shape[:2])
    rollouts = dataclasses.replace(batch.rows.rollouts, sum_pi_squared=_of_responses(found, batch).clamp(max=1))
    return dataclasses.replace(batch, rows=dataclasses.replace(batch.rows, rollouts=rollouts))


def _logits(model: Any, batch: LabBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, W − 1, V) of all tokens but the first of prompt and response, and all tokens (B, W)."""
    width = max(map(len, batch.tokens))
    # right padding under a causal mask is never seen by a real token: no attention mask needed
    ids = torch.tensor([row + [0] * (width - len(row)) for row in batch.tokens], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[:, :-1].float(), ids


def _of_responses(numbers: torch.Tensor, batch: LabBatch) -> torch.Tensor:
    """Numbers of the responses' tokens (B, T) where the rollouts are, of those of all but the first (B, W − 1)."""
    found, mask = numbers.cpu(), batch.rows.rollouts.response_mask
    first = torch.tensor([len(prompt) - 1 for prompt in batch.rows.prompts])
    columns = (first[:, None] + torch.arange(mask.shape[1])[None, :]).clamp(max=found.shape[1] - 1)
    return torch.where(mask, found.gather(1, columns), 0.0)
