"""What calibration knows of the tokens before a state, as a few numbers for each state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.types import Rollouts, Segments, by_rows
from rredcot_plugin.values.fingerprints import fingerprints

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


MOST_NATS = 1e4
"""Of one token, either way. What an engine puts in place of −∞ would leave a fit no other difference between states."""


@dataclass(frozen=True)
class PrefixNumbers:
    """Numbers about the tokens before each state.

    ``tokens`` is how many of them are the model's. ``log_probs`` holds the sum, mean and least log-prob of the prefix,
    and the sum and least of the segment that ends at the state; ``entropies`` holds the mean and greatest entropy of the
    prefix; both are 0 where the rollouts do not carry the signal. ``segment`` and ``prefix`` are fingerprints of the
    segment that begins at the state and of all tokens before it, a tool's included (``fingerprints``).
    """

    tokens: Float[Tensor, "B S"]
    log_probs: Float[Tensor, "B S 5"]
    entropies: Float[Tensor, "B S 2"]
    segment: Int[Tensor, "B S"]
    prefix: Int[Tensor, "B S"]


def prefix_numbers(rollouts: Rollouts, segments: Segments) -> PrefixNumbers:
    """The numbers of every state. Those of a row are a function of its own tokens and signals alone.

    Raises:
        ValueError: rollouts without tokens.
    """
    tokens = by_rows(exclusive_sum, rollouts.response_mask, segments.starts)
    return PrefixNumbers(
        tokens,
        _signal_numbers(rollouts.log_probs, rollouts.response_mask, segments, tokens, lowest=True),
        _signal_numbers(rollouts.entropies, rollouts.response_mask, segments, tokens, lowest=False),
        *fingerprints(rollouts, segments),
    )


def _signal_numbers(
    signal: torch.Tensor | None, real: torch.Tensor, segments: Segments, position: torch.Tensor, *, lowest: bool
) -> torch.Tensor:
    """Running statistics of a per-token signal over the prefix: log-probs in full, entropies in short."""
    if signal is None:
        return position.new_zeros(*position.shape, 5 if lowest else 2)

    def statistics(
        x: torch.Tensor, real: torch.Tensor, before: torch.Tensor, ids: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        x = x.clamp(-MOST_NATS, MOST_NATS)
        total = exclusive_sum(torch.where(real, x, 0.0), before)
        last = _extreme_of_last_segment(x, real, ids, before.shape[1], lowest=lowest)
        extreme = last.cummin(dim=1).values if lowest else last.cummax(dim=1).values
        columns = [total / position.clamp(min=1), _or_zero(extreme)]
        if lowest:
            last_total = torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
            columns = [total, *columns, last_total, _or_zero(last)]
        return torch.stack(columns, dim=2)

    return by_rows(statistics, signal.float(), real, segments.starts, segments.segment_ids, position)


def exclusive_sum(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Σ of the columns < before."""
    padded = torch.nn.functional.pad(x.cumsum(dim=1, dtype=torch.float64), (1, 0))
    return padded.gather(1, before).float()


def _extreme_of_last_segment(
    x: torch.Tensor, real: torch.Tensor, ids: torch.Tensor, states: int, *, lowest: bool
) -> torch.Tensor:
    """Least (or greatest) value within the segment that ends at each state, infinite at the prompt: (B, S)."""
    neutral = torch.inf if lowest else -torch.inf
    found = x.new_full((len(x), states + 1), neutral)
    found.scatter_reduce_(1, ids + 1, torch.where(real, x, neutral), reduce="amin" if lowest else "amax")
    found[:, 0] = neutral  # tokens of no segment
    return found[:, :states]


def _or_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(x), x, 0.0)
