"""Advantages of enumerated traces, all of them from ``rredcot_plugin.assign_credit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.proposals import build_proposals
from tabular.policy import Tree
from tabular.prompts import Prompt

PLAIN: dict[str, Any] = {"scale": "none", "calibrate": "none"}
"""Neither scaled nor calibrated, so that nothing but the group itself is seen."""


def rollouts_of(prompt: Prompt, rows: torch.Tensor, group_ids: Sequence[int]) -> rr.Rollouts:
    """Rollouts of the traces with these numbers: one token a choice, the reward on the last."""
    ids = prompt.tree.traces[rows]
    rewards = torch.zeros(ids.shape)
    rewards[:, -1] = prompt.rewards[rows].float()
    mask = torch.ones_like(ids).bool()
    log_probs = prompt.log_probs[rows].float()
    return rr.Rollouts(ids, mask, rewards, group_ids, log_probs=log_probs)


def one_token_each(rollouts: rr.Rollouts, whole: bool = False) -> rr.Segments:
    """A segment a token; with ``whole`` one for the whole trace, as in GRPO."""
    rows, tokens = rollouts.token_ids.shape
    ids = torch.arange(tokens).expand(rows, -1)
    ids = torch.zeros_like(ids) if whole else ids
    return rr.Segments(ids, torch.full((rows,), int(ids[0, -1]) + 1))


def own_table(
    prompt: Prompt, options: dict[str, Any], values: torch.Tensor, estimator: str | None = None
) -> torch.Tensor:
    """(D, 1, M, T): advantages of every trace for values (D, M, T) that see no other rollout."""
    rewards = prompt.rewards.expand(len(values), -1)
    return stacked_advantages(prompt.tree, rewards, values, options, estimator)[:, None]


def stacked_advantages(
    tree: Tree,
    rewards: torch.Tensor,
    values: torch.Tensor,
    options: dict[str, Any],
    estimator: str | None = None,
) -> torch.Tensor:
    """(N, M, T) for rewards (N, M) and values (N, M, T) of every trace, each a group of its own.

    With ``estimator`` the values arrive as its ``token_scores``, as in training.
    """
    N, M, T = values.shape
    ids, flat = tree.traces.repeat(N, 1), values.reshape(N * M, T).float()
    paid = torch.zeros(ids.shape)
    paid[:, -1] = rewards.flatten().float()
    scores = {estimator: flat} if estimator else None
    rollouts = rr.Rollouts(ids, torch.ones_like(ids).bool(), paid, range(N * M), token_scores=scores)
    given = {} if estimator else {"values": flat}
    config = rr.RRedCoTConfig(**PLAIN | options)
    credit = rr.assign_credit(rollouts, config, segments=one_token_each(rollouts), **given)
    return credit.advantages.double().view(N, M, T)


def redistributed(prompt: Prompt, values: torch.Tensor) -> torch.Tensor:
    """(M, T): the redistributed reward r of every trace, for values (M, T)."""
    rollouts = rollouts_of(prompt, torch.arange(len(values)), range(len(values)))
    config = rr.RRedCoTConfig(**PLAIN)
    segments = one_token_each(rollouts)
    return rr.assign_credit(rollouts, config, segments=segments, values=values.float()).segment_rewards.double()


def group_table(
    prompt: Prompt,
    options: dict[str, Any],
    size: int,
    values: torch.Tensor | None = None,
    answer_now: torch.Tensor | None = None,
    whole: bool = False,
    scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """(1, G, M, T): advantages of every trace beside m = 0..G−1 siblings that solved the prompt.

    Which traces the siblings took does not matter: rewards are 0 or 1 and one answer alone is rewarded, so that
    means, deviations and proposals of a group follow from m. ``values`` (M, T) are handed over; ``scores``
    (M, T) arrive as those of a ``reward_model``, so that the prior of the group applies; ``answer_now`` (M, T) is
    the probability of the right answer at each state, for the estimators that probe.
    """
    M, T = prompt.tree.traces.shape
    solved, failed = int(prompt.rewards.argmax()), int(prompt.rewards.argmin())
    siblings = torch.where(torch.arange(size - 1) < torch.arange(size)[:, None], solved, failed)  # (G, G−1)
    own = torch.arange(M)[None, :, None].expand(size, M, 1)
    rows = torch.cat([own, siblings[:, None, :].expand(size, M, size - 1)], dim=2).flatten()
    rollouts = rollouts_of(prompt, rows, [row // size for row in range(len(rows))])
    if scores is not None:
        rollouts = dataclasses.replace(rollouts, token_scores={"reward_model": scores[rows].float()})
    config = rr.RRedCoTConfig(**PLAIN | options | ({"segmenter": "none"} if whole else {}))
    given: dict[str, Any] = {} if values is None else {"values": values[rows].float()}
    if answer_now is not None:
        given["probed"] = probe(prompt, rows, rollouts, config, answer_now)
    credit = rr.assign_credit(rollouts, config, segments=one_token_each(rollouts, whole), **given)
    return credit.advantages.double().view(1, size, M, size, T)[:, :, :, 0]


def probe(
    prompt: Prompt,
    rows: torch.Tensor,
    rollouts: rr.Rollouts,
    config: rr.RRedCoTConfig,
    answer_now: torch.Tensor,
) -> Probed:
    """What a forward pass would return for the answers that the siblings propose: the right one, or none."""
    proposals = build_proposals(
        [str(answer) for answer in prompt.answers[rows].tolist()],
        rollouts.outcomes,
        rollouts.group_ids,
        None,
        proposes=config.build_value_estimator().proposes,
        leave_one_out=config.leave_one_out,
    )
    log_pi = answer_now[rows].clamp(min=1e-12).log().float()[:, :, None]
    states = torch.full((len(rows),), log_pi.shape[1])
    return Probed(log_pi.expand(-1, -1, proposals.valid.shape[1]), proposals.utility, proposals.valid, states)
