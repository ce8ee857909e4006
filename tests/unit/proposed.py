"""Proposals and rollouts with signals."""

from __future__ import annotations

import torch

import rredcot_plugin as rr


def rollouts_with_signals(B: int = 6, T: int = 12, seed: int = 0) -> rr.Rollouts:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=g) > 0.2
    rewards = torch.zeros(B, T)
    log_probs, entropies = -torch.rand(B, T, generator=g), torch.rand(B, T, generator=g)
    return rr.Rollouts(
        torch.zeros(B, T, dtype=torch.int64), mask, rewards, [0] * B, log_probs=log_probs, entropies=entropies
    )
