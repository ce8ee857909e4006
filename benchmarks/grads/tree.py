"""Thousands of samples of a prompt for the price of its distinct ones: siblings share their forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lab.devices import CPU, CUDA
from lab.sampling import Prefix, batches_by_length, check_prefixes, looked_up, read_prefixes

Counted = list[tuple[list[int], int]]
"""Distinct continuations, and how many of the samples went that way."""

TOGETHER = {CPU: 16, CUDA: 128}
"""Prefixes that are continued at once, by type of device."""


@torch.inference_mode()
def counted_continuations(
    model: Any, prefixes: Sequence[Prefix], budgets: Sequence[int], copies: int, seed: int
) -> list[Counted]:
    """``copies`` independent samples at temperature 1 after each prefix, up to its budget, with the closing eos.

    All samples that agree so far are one row of the forward pass; how many of them take which token is one multinomial
    draw, so the counts are distributed as those of independent samples. ``seed`` fixes the result.

    Raises:
        ValueError: an empty prefix, or a budget under 1.
    """
    check_prefixes(prefixes, budgets)
    rng = np.random.default_rng(seed)
    found: list[Counted] = [[] for _ in prefixes]
    for batch in batches_by_length(prefixes, TOGETHER[model.device.type]):
        sampled = _sample(model, [prefixes[i] for i in batch], [budgets[i] for i in batch], copies, rng)
        for i, rows in zip(batch, sampled, strict=True):
            found[i] = rows
    return found


def _sample(
    model: Any, prefixes: list[Prefix], budgets: list[int], copies: int, rng: np.random.Generator
) -> list[Counted]:
    """Left padding, one cache; a row is a distinct prefix that ``count`` samples have reached."""
    output, mask, positions = read_prefixes(model, prefixes)
    owner, count = np.arange(len(prefixes)), np.full(len(prefixes), copies)
    paths: list[list[int]] = [[] for _ in prefixes]
    found: list[Counted] = [[] for _ in prefixes]
    cache, positions = output.past_key_values, positions[:, -1:]
    while True:
        parent, token, taken = _split(output.logits[:, -1], count, rng)
        paths = [[*paths[p], int(t)] for p, t in zip(parent, token, strict=True)]
        owner, count = owner[parent], taken
        limit = np.array([budgets[i] for i in owner])
        ended = (token == model.config.eos_token_id) | (len(paths[0]) >= limit)
        for i in ended.nonzero()[0]:
            found[owner[i]].append((paths[i], int(count[i])))
        going = (~ended).nonzero()[0]
        if not len(going):
            return found
        paths, owner, count = [paths[i] for i in going], owner[going], count[going]
        kept = torch.from_numpy(parent[going]).to(model.device)
        cache.batch_select_indices(kept)
        mask, positions = mask[kept], positions[kept] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        chosen = torch.from_numpy(token[going])[:, None].to(model.device)
        output = model(
            chosen,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values


def _split(
    logits: torch.Tensor, count: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, token and number of samples of every child that a sample went to."""
    if logits.device.type == CUDA:
        return inverted(logits, count, rng)
    drawn = rng.multinomial(count, logits.double().softmax(-1).numpy())
    parent, token = drawn.nonzero()
    return parent, token, drawn[parent, token]


def inverted(
    logits: torch.Tensor, count: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same in distribution where the logits are: one uniform number a sample, read off the cumulated probabilities."""
    uniform = torch.from_numpy(rng.random((len(count), int(count.max())))).to(logits.device)
    token = looked_up(logits.double().softmax(-1), uniform).cpu().numpy()
    row, sample = (np.arange(count.max()) < count[:, None]).nonzero()
    pairs, taken = np.unique(np.stack([row, token[row, sample]]), axis=1, return_counts=True)
    return pairs[0], pairs[1], taken
