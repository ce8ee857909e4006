"""Sampling many continuations of few prefixes: every distinct prefix is read once, its cache is then repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lab.devices import CPU
from lab.graphs import decoder

READ_ROWS = 64
"""Prefixes that are read together; their copies may be ``ROWS`` at once, ``GRAPH_ROWS`` on a GPU."""
ROWS, GRAPH_ROWS = 512, 256
SMALL_VOCABULARY = 4096
"""The largest one for which ``torch.multinomial`` draws tokens, as in all results of tiny models."""

ASK_EVERY = 4
"""Tokens after which a GPU is asked whether all rows have ended."""

Prefix = tuple[int, ...]


@torch.inference_mode()
def continuations(
    model: Any, prefixes: Sequence[Prefix], budgets: Sequence[int], copies: int, seed: int
) -> list[list[list[int]]]:
    """``copies`` samples at temperature 1 after each prefix, up to its budget of tokens, with the closing eos.

    ``seed`` fixes the result for the same list of prefixes, on each type of device another one.

    Raises:
        ValueError: an empty prefix, or a budget under 1.
    """
    check_prefixes(prefixes, budgets)
    generator = torch.Generator(model.device).manual_seed(seed)
    found: list[list[list[int]]] = [[] for _ in prefixes]
    most, sample = (ROWS, _sample) if model.device.type == CPU else (GRAPH_ROWS, sample_at_fixed_addresses)
    for batch in batches_by_length(prefixes, max(1, min(READ_ROWS, most // copies))):
        sampled = sample(model, [prefixes[i] for i in batch], [budgets[i] for i in batch], copies, generator)
        for i, rows in zip(batch, sampled, strict=True):
            found[i] = rows
    return found


def check_prefixes(prefixes: Sequence[Prefix], budgets: Sequence[int]) -> None:
    """Raise ``ValueError`` for an empty prefix, or a budget under 1."""
    for prefix, budget in zip(prefixes, budgets, strict=True):
        if not prefix or budget < 1:
            raise ValueError(f"expected prefixes and budgets of at least one token, got {len(prefix)}, {budget}")


def left_padded(
    prefixes: Sequence[Prefix], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, attention mask and position ids, (B, longest) each, on ``device``."""
    longest = max(map(len, prefixes))
    tokens = torch.zeros(len(prefixes), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prefix in enumerate(prefixes):
        tokens[row, longest - len(prefix) :] = torch.tensor(prefix)
        mask[row, longest - len(prefix) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return tokens.to(device), mask.to(device), positions.to(device)


def batches_by_length(prefixes: Sequence[Prefix], size: int) -> Iterator[list[int]]:
    order = sorted(range(len(prefixes)), key=lambda i: (len(prefixes[i]), i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def read_prefixes(model: Any, prefixes: list[Prefix]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The model's output after every prefix, with its cache; attention mask and position ids, (B, longest) each."""
    tokens, mask, positions = left_padded(prefixes, model.device)
    output = model(tokens, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    return output, mask, positions


def draw_tokens(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A token (B, 1) of each distribution (B, V). ``torch.multinomial`` draws V numbers a row, which takes half of the time
    where V is large; there a single number is looked up in the cumulated probabilities."""
    if probs.shape[1] <= SMALL_VOCABULARY:
        return torch.multinomial(probs, 1, generator=generator)
    return looked_up(probs, torch.rand(len(probs), 1, generator=generator, device=probs.device))


def looked_up(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The tokens (B, n) of distributions (B, V) at ``uniform`` (B, n) numbers from [0, 1): where the cumulated probability
    passes them."""
    cumulated = probs.cumsum(-1)
    token = torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True)
    return token.clamp(max=probs.shape[-1] - 1)


def _by_prefix(out: torch.Tensor, copies: int) -> list[list[list[int]]]:
    """The samples of each prefix, from the rows of all; -1 is not a token."""
    samples = [[token for token in row if token >= 0] for row in out.tolist()]
    return [samples[first : first + copies] for first in range(0, len(samples), copies)]


def _sample(
    model: Any, prefixes: list[Prefix], budgets: list[int], copies: int, generator: torch.Generator
) -> list[list[list[int]]]:
    """Left padding, one cache; rows that have ended leave it when half of the rows have."""
    eos, most = model.config.eos_token_id, max(budgets)
    output, mask, positions = read_prefixes(model, prefixes)
    cache = output.past_key_values
    cache.batch_repeat_interleave(copies)
    logits, mask = (x.repeat_interleave(copies, 0) for x in (output.logits[:, -1], mask))
    positions = positions[:, -1:].repeat_interleave(copies, 0)
    budget = torch.tensor(budgets, device=model.device).repeat_interleave(copies)
    out = torch.full((len(budget), most), -1, device=model.device)
    rows = torch.arange(len(budget), device=model.device)
    running = torch.ones_like(rows, dtype=torch.bool)
    for step in range(most):
        chosen = draw_tokens(logits.float().softmax(-1), generator)
        out[rows[running], step] = chosen[running, 0]
        running = running & (chosen[:, 0] != eos) & (budget[rows] > step + 1)
        if not bool(running.any()):
            break
        if 2 * int(running.sum()) <= len(rows):
            keep = running.nonzero()[:, 0]
            cache.batch_select_indices(keep)
            rows, mask, positions, chosen, running = (x[keep] for x in (rows, mask, positions, chosen, running))
        mask, positions = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), positions + 1
        output = model(
            chosen,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, logits = output.past_key_values, output.logits[:, -1]
    return _by_prefix(out, copies)


def sample_at_fixed_addresses(
    model: Any, prefixes: list[Prefix], budgets: list[int], copies: int, generator: torch.Generator
) -> list[list[list[int]]]:
    """The same by ``lab.graphs``: ended rows run on until all have, since a graph knows one number of rows."""
    eos, most = model.config.eos_token_id, max(budgets)
    output, mask, positions = read_prefixes(model, prefixes)
    following = decoder(model, len(prefixes) * copies, mask.shape[1] + most)
    following.fill(output.past_key_values, mask, positions, copies)
    logits = output.logits[:, -1].repeat_interleave(copies, 0)
    budget = torch.tensor(budgets, device=model.device).repeat_interleave(copies)
    out = torch.full((len(budget), most), -1, device=model.device)
    running = torch.ones_like(budget, dtype=torch.bool)
    for step in range(most):
        chosen = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)
        out[:, step] = torch.where(running, chosen[:, 0], -1)
        running = running & (chosen[:, 0] != eos) & (budget > step + 1)
        if step % ASK_EVERY == 0 and not bool(running.any()):
            break
        logits = following(chosen)
    return _by_prefix(out, copies)
