"""Generate for many requests at once with a Hugging Face causal language model on the CPU.

Left padding and one key-value cache for the whole batch; rows that have finished leave the cache when half of
its rows are idle. No request joins a running batch: rollouts arrive in waves anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rredcot_plugin.integrations.cpu.sampling import Sampling, choose_tokens, processed_log_probs


@dataclass(frozen=True)
class Request:
    """One prompt; `uniforms` holds a random number for each of the `len(uniforms)` tokens it may generate."""

    prompt: tuple[int, ...]
    sampling: Sampling
    uniforms: np.ndarray

    def __post_init__(self) -> None:
        if not self.prompt or not len(self.uniforms):
            raise ValueError(
                f"prompt and budget must not be empty: {len(self.prompt)}, {len(self.uniforms)} tokens"
            )


@dataclass
class Generation:
    """The response so far: token ids (with the final eos, if one was drawn) and their log-probabilities.

    `finish` is "stop" (eos), "length" (budget spent) or "abort".
    """

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish: str = "abort"


@torch.inference_mode()
def generate_batch(
    model: Any,
    requests: Sequence[Request],
    eos_ids: Collection[int],
    aborted: Callable[[], bool] = lambda: False,
) -> list[Generation]:
    """Responses in the order of `requests`; `aborted` is asked before each token and ends the whole batch.

    A row's tokens depend on its own request only, up to the rounding of batched matrix products in the
    logits.
    """
    results = [Generation() for _ in requests]
    rows = list(range(len(requests)))  # request of each cache row
    tokens, mask = _left_padded([r.prompt for r in requests])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = None
    while not aborted():
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        chosen = _step(output.logits[:, -1], [requests[r] for r in rows], [results[r] for r in rows], eos_ids)
        running = [i for i, r in enumerate(rows) if results[r].finish == "abort"]
        if not running:
            break
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        if 2 * len(running) <= len(rows):
            keep = torch.tensor(running)
            cache.batch_select_indices(keep)
            tokens, positions, mask = tokens[keep], positions[keep], mask[keep]
            rows = [rows[i] for i in running]
    return results


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask (n, longest); the padding id 0 is masked out and never read."""
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return tokens, mask


def _step(
    logits: torch.Tensor, requests: Sequence[Request], results: Sequence[Generation], eos_ids: Collection[int]
) -> torch.Tensor:
    """Choose the next token of every row, record it for the rows still running, and return all of them (n,)."""
    sampling = [r.sampling for r in requests]
    log_probs = processed_log_probs(logits, sampling)
    # A finished row keeps its place until the cache is compacted; what it draws is not recorded.
    uniforms = [
        r.uniforms[min(len(g.token_ids), len(r.uniforms) - 1)] for r, g in zip(requests, results, strict=True)
    ]
    chosen = choose_tokens(log_probs, torch.tensor(uniforms, dtype=torch.float64), sampling)
    values = log_probs.gather(1, chosen[:, None]).squeeze(1).tolist()
    for token, value, request, result in zip(chosen.tolist(), values, requests, results, strict=True):
        if result.finish != "abort":
            continue
        result.token_ids.append(token)
        result.log_probs.append(value)
        if token in eos_ids and not request.sampling.ignore_eos:
            result.finish = "stop"
        elif len(result.token_ids) == len(request.uniforms):
            result.finish = "length"
    return chosen
