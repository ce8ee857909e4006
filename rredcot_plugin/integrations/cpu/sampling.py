"""How one token is chosen: temperature, top-k, top-p, and random numbers that depend on the request alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

GREEDY_BELOW = 1e-5  # vLLM's bound: lower temperatures mean argmax


@dataclass(frozen=True)
class Sampling:
    """Parameters of one request; `top_k` <= 0 and `top_p` = 1 mean no truncation.

    A `seed` replaces the server's, and makes the result a function of the request alone.

    Raises ValueError for a value that is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    log_probs: bool = False
    seed: int | None = field(default=None, repr=False)  # absent from the key of requests without one

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} must be >= 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @classmethod
    def from_request(cls, params: Mapping[str, Any], *, ignore_eos: bool) -> Sampling:
        """verl's sampling parameters of a request; the length limits are read by `token_budget`.

        Raises ValueError for parameters that this server would otherwise ignore silently.
        """
        known = {"temperature", "top_p", "top_k", "logprobs", "ignore_eos", "repetition_penalty", "seed"}
        unknown = sorted(set(params) - known - {"max_tokens", "max_new_tokens"})
        if unknown:
            raise ValueError(
                f"sampling parameters {unknown} are not supported by rollout hf_cpu, only {sorted(known)}"
            )
        penalty = params.get("repetition_penalty", 1.0)
        if penalty != 1.0:
            raise ValueError(f"repetition_penalty={penalty} is not supported by rollout hf_cpu, only 1.0")
        return cls(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=int(params.get("top_k", -1)),
            ignore_eos=bool(params.get("ignore_eos", ignore_eos)),
            log_probs=bool(params.get("logprobs", False)),
            seed=params.get("seed"),
        )


def token_budget(
    params: Mapping[str, Any], *, prompt: int, prompt_length: int, response_length: int, max_len: int
) -> int:
    """How many tokens a request may generate: its own limit, else what the two configured lengths leave.

    Never more than the context has room for, never less than one. Raises ValueError if the context is full.
    """
    room = max_len - prompt
    if room < 1:
        raise ValueError(f"a prompt of {prompt} tokens leaves no room in max_model_len={max_len}")
    default = min(response_length, prompt_length + response_length - prompt)
    wanted = params.get("max_tokens", params.get("max_new_tokens", default))
    return max(1, min(int(wanted), room))


def request_uniforms(
    count: int,
    *,
    seed: int,
    replica: int,
    version: int | None,
    prompt: Sequence[int],
    sampling: Sampling,
    occurrence: int,
) -> np.ndarray:
    """`count` uniform numbers in [0, 1), one per token, float64.

    They are a function of the arguments only: not of arrival order, request id or batch mates. `occurrence` counts
    the equal requests (same prompt, same parameters) since the last weight update, so that the members of a group
    differ and a resumed run draws what an uninterrupted one would have drawn.
    """
    drawn_by: tuple[Any, ...] = (seed, replica, version, list(prompt), sampling, occurrence)
    if sampling.seed is not None:
        drawn_by = (sampling.seed, list(prompt), sampling)
    key = repr(drawn_by).encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).random(count)


def processed_log_probs(logits: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Log-probabilities (n, V) of the distributions that are sampled from, given logits (n, V).

    log softmax(logits / temperature), then restricted to the top-k tokens and of those to the top-p mass, and
    renormalised: vLLM's `logprobs_mode=processed_logprobs`, verl's default. A greedy row has temperature 1 and no
    truncation, as in vLLM.
    """
    temperature = logits.new_tensor([1.0 if s.greedy else s.temperature for s in sampling])
    scaled = logits.float() / temperature[:, None]
    for row, s in enumerate(sampling):
        if not s.greedy and (s.top_p < 1 or 0 < s.top_k < scaled.shape[-1]):
            scaled[row] = _truncated(scaled[row], s)
    return scaled.log_softmax(-1)


def _truncated(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    ordered, order = logits.sort(descending=True)
    if 0 < sampling.top_k < len(ordered):
        ordered = torch.where(ordered < ordered[sampling.top_k - 1], -torch.inf, ordered)
    probs = ordered.softmax(-1)
    mass_before = probs.cumsum(-1) - probs
    ordered = torch.where(mass_before >= sampling.top_p, -torch.inf, ordered)
    return torch.empty_like(logits).scatter_(0, order, ordered)


def choose_tokens(log_probs: torch.Tensor, uniforms: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Token ids (n,): argmax for greedy rows, else the inverse cumulative distribution at `uniforms` (n,)."""
    cumulative = log_probs.double().exp().cumsum(-1)
    position = (uniforms * cumulative[:, -1])[:, None]
    drawn = torch.searchsorted(cumulative, position, right=True).squeeze(1).clamp_(max=log_probs.shape[-1] - 1)
    greedy = torch.tensor([s.greedy for s in sampling])
    return torch.where(greedy, log_probs.argmax(-1), drawn)
