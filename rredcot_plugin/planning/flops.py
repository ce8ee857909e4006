"""Floating-point operations of the passes of a step.

A forward of n tokens that together see c keys, with logits for m of them, in three terms:

    F(n, c, m) = 2 · P_layers · n  +  4 · L · a · c  +  2 · V · h · m

(a multiplication and an addition for every weight; queries times keys and weights times values; the LM head). With all
logits and tied or small embeddings that is the well-known 2 · parameters a token, and attention 4 · L · a · n² / 2 for a
causal sequence of n tokens, where c = n (n + 1) / 2. Forward and backward together are 3 F, and 4 F where layers are
computed again in the backward (gradient checkpointing). Norms, softmax and sampling are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rredcot_plugin.planning.models import ModelSizes


@dataclass(frozen=True)
class Flops:
    """Operations by term; ``total`` is their sum."""

    layers: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        return self.layers + self.attention + self.head

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.layers + other.layers, self.attention + other.attention, self.head + other.head)

    def times(self, factor: float) -> Flops:
        return Flops(factor * self.layers, factor * self.attention, factor * self.head)


def forward(sizes: ModelSizes, tokens: float, keys: float, logits: float) -> Flops:
    """F(n, c, m) of the module's docstring."""
    return Flops(
        layers=2 * sizes.layer_parameters * tokens,
        attention=4 * sizes.layers * sizes.attention * keys,
        head=2 * sizes.vocabulary * sizes.hidden * logits,
    )


def trace_pass(sizes: ModelSizes, tokens: float) -> Flops:
    """The log-prob pass of a trace of n tokens, logits for all: F(n, n (n + 1) / 2, n)."""
    return forward(sizes, tokens, tokens * (tokens + 1) / 2, tokens)


def forked_probes(sizes: ModelSizes, boundaries: Sequence[float], probes: float, probe_tokens: float) -> Flops:
    """What probes add to the pass in ``cached`` and ``packed``: each reads the keys of its prefix, computed once.

    Per boundary b and probe of A tokens: F(A, A b + A (A + 1) / 2, A). Both backends do the same operations.
    ``probes`` is how many stand at each boundary; ``boundaries`` count tokens from the start of the prompt.
    """
    A, count = probe_tokens, probes * len(boundaries)
    keys = probes * A * sum(boundaries) + count * A * (A + 1) / 2
    return forward(sizes, count * A, keys, count * A)


def batched_probes(sizes: ModelSizes, boundaries: Sequence[float], probes: float, probe_tokens: float) -> Flops:
    """What probes add as rows of their own in verl's log-prob pass: prefix and probe again, all logits.

    Per boundary b and probe of A tokens the pass of a trace of b + A tokens (``trace_pass``).
    """
    total = Flops(0.0, 0.0, 0.0)
    for boundary in boundaries:
        total += trace_pass(sizes, boundary + probe_tokens)
    return total.times(probes)


def even_boundaries(prompt: float, response: float, segments: int, first_state: int = 1) -> list[float]:
    """Where segments of equal length begin, in tokens from the start of the prompt.

    The first one's value comes from the group's rewards (``prior_from_group``), so that K − 1 are left.

    >>> even_boundaries(10, 40, 4)
    [20.0, 30.0, 40.0]
    """
    return [prompt + response * k / segments for k in range(first_state, segments)]
