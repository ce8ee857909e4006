"""A reward model for RED: a family's first policy with a score head, fitted to the outcomes of its own rollouts.

It judges whole responses, as reward models do; what it says of a prefix nobody taught it (arXiv 2411.08302).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from lab.rollouts import Actor
from lab.store import Store
from transformers import Qwen3ForSequenceClassification

from learn.batch import rollouts, seed_of
from learn.statistics import improvement
from learn.systems import Judging
from rredcot_plugin.demo.train_reasoner import batches

QUESTION_SEED = 500
"""Neither a training seed (from 1,000) nor the held-out one."""

HELD_OUT = 64
"""Held-out questions that it is judged on, four answers each."""


def load_reward_model(actor: Actor, store: Store, model: str, judging: Judging) -> Qwen3ForSequenceClassification:
    """The reward model of the actor as it is now, in eval mode; fitted unless the store has it.

    ``model`` is a digest of what the actor is.
    """
    network = with_score_head(actor.model)

    def make() -> dict[str, torch.Tensor]:
        fit(network, actor, judging)
        network.held_out_auc.fill_(held_out_auc(network, actor))
        return dict(network.state_dict())

    settings = {**asdict(judging), "model": model}
    network.load_state_dict(store.tensors(f"reward_model_{actor.family.name}", settings, make))
    return network.eval()


def with_score_head(policy: Any) -> Qwen3ForSequenceClassification:
    """The policy's layers under a head of one score, which begins at 0."""
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    network = Qwen3ForSequenceClassification(config)
    network.register_buffer("held_out_auc", torch.tensor(torch.nan))
    network.model.load_state_dict(policy.model.state_dict())
    torch.nn.init.zeros_(network.score.weight)
    return network


def fit(network: Qwen3ForSequenceClassification, actor: Actor, judging: Judging) -> None:
    """Regress the reward on the score at the last token, in place."""
    questions = actor.family.problems("train", judging.questions, QUESTION_SEED)
    rows = rollouts(actor, questions, judging.group, seed_of(0, "judged", 0))
    rewards = {tuple(row.tokens): row.row.reward for row in rows}
    examples = [(row.tokens, 0) for row in rows]
    steps = [part for epoch in range(judging.epochs) for part in batches(examples, judging.batch, epoch)]
    optimizer = torch.optim.AdamW(network.parameters(), lr=judging.rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, judging.rate, total_steps=len(steps), pct_start=0.1)
    network.train()
    for part in steps:
        scores = every_score(network, [tokens for tokens, _ in part])
        last = torch.stack([own[-1] for own in scores])
        loss = (last - torch.tensor([rewards[tuple(tokens)] for tokens, _ in part])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def held_out_auc(network: Qwen3ForSequenceClassification, actor: Actor) -> float:
    """Share of pairs of a rewarded and a failed response to held-out questions that it puts in order; NaN without one."""
    rows = rollouts(actor, actor.family.problems("val", HELD_OUT, 0), 4, seed_of(1, "judged", 0))
    last = np.array([float(own[-1]) for own in every_score(network, [row.tokens for row in rows])])
    rewarded = np.array([row.row.reward for row in rows]) > 0
    return improvement(last[rewarded], last[~rewarded])


def every_score(network: Qwen3ForSequenceClassification, tokens: Sequence[list[int]]) -> list[torch.Tensor]:
    """The score head at every token of each trace; right padding under a causal mask is never seen."""
    width = max(map(len, tokens))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
    found = network.score(network.model(input_ids=ids, use_cache=False).last_hidden_state)[..., 0]
    return [own[: len(row)] for own, row in zip(found, tokens, strict=True)]


@torch.no_grad()
def scores_before(
    network: Qwen3ForSequenceClassification, tokens: Sequence[list[int]], prompts: Sequence[int], width: int
) -> torch.Tensor:
    """R_φ(x, y_<t) at each of ``width`` response tokens, (B, T); NaN after the end."""
    table = torch.full((len(tokens), width), torch.nan)
    for i, (scores, prompt) in enumerate(zip(every_score(network, tokens), prompts, strict=True)):
        table[i, : len(scores) - prompt] = scores[prompt - 1 : -1]
    return table
