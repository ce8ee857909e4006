"""The gradient as Adam sees it: every coordinate over the root of its second moment.

Products of plain gradients are ruled by a few long coordinates, which Adam shortens, so in its metric methods may rank
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from lab.family import Question
from lab.rollouts import Actor
from lab.store import Store

from grads.sketch import coordinates, segment_gradients
from grads.tree import Counted

EPSILON = 0.01
"""Of the root of the mean second moment: coordinates that these rollouts hardly move, and others do, would rule without it."""


def adam_scale(
    actor: Actor, questions: Sequence[Question], counted: Sequence[Counted], store: Store
) -> torch.Tensor:
    """1 / (√v + ε √(mean v)) of every coordinate, v = E[(R − E R)²(∇ log π(trace))²]; (parameters,).

    The second moment of the gradient of one rollout measured from its prompt's mean, over the rollouts that are compared:
    where noise is larger than the gradient, it is that of a step times the number of its rollouts, for every method alike.
    """

    def make() -> dict[str, torch.Tensor]:
        total = torch.zeros(coordinates(actor.model), device=actor.model.device)
        for question, own in zip(questions, counted, strict=True):
            total += _squares(actor, question, own)
        return {"second_moment": (total / len(questions)).cpu()}

    settings = [
        [q.text, [[list(tokens), count] for tokens, count in own]]
        for q, own in zip(questions, counted, strict=True)
    ]
    moment = store.tensors("second_moment", settings, make)["second_moment"]
    return 1 / (moment.sqrt() + EPSILON * moment.mean().sqrt())


def _squares(actor: Actor, question: Question, counted: Counted) -> torch.Tensor:
    """E[(R − E R)²(∇ log π)²] of one prompt's rollouts."""
    rewards = np.array([actor.family.reward(question, actor.text(tokens)) for tokens, _ in counted])
    shares = np.array([count for _, count in counted], float) / sum(count for _, count in counted)
    weights = shares * (rewards - (shares * rewards).sum()) ** 2
    total = torch.zeros(coordinates(actor.model), device=actor.model.device)
    for (tokens, _), weight in zip(counted, weights.tolist(), strict=True):
        if weight > 0:
            gradient = segment_gradients(actor.model, actor.prompt(question), tokens, [(0, len(tokens))])[0]
            total += weight * gradient.square()
    return total
