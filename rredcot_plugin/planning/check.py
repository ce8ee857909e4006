"""The number that benchmarks measure: a log-prob pass with probes over one without, as rredcot runs it by itself."""

from __future__ import annotations

from collections.abc import Sequence

from rredcot_plugin.planning.flops import Flops, forked_probes, forward, trace_pass
from rredcot_plugin.planning.models import ModelSizes
from rredcot_plugin.probes.batched import MAX_TOKENS, chunks


def predicted_ratio(
    sizes: ModelSizes, backend: str, tokens: int, boundaries: Sequence[int], probe_tokens: int
) -> float:
    """Operations of the pass of a trace and one probe a boundary, over those of the pass alone."""
    plain = trace_pass(sizes, tokens).total
    if backend == "batched":
        return (
            1
            + padded_probes(sizes, [boundary + probe_tokens for boundary in boundaries], probe_tokens).total
            / plain
        )
    return 1 + forked_probes(sizes, boundaries, 1, probe_tokens).total / plain


def padded_probes(sizes: ModelSizes, lengths: Sequence[int], probe_tokens: int) -> Flops:
    """Operations of ``forward_batched`` on rows of these lengths, prefix and probe.

    Its rows are padded to the longest of their chunk, w tokens, under a mask, so that attention skips nothing: w² keys
    a row; logits are made where any row of the chunk needs them.
    """
    total = Flops(0.0, 0.0, 0.0)
    for chunk in chunks(list(lengths), MAX_TOKENS):
        width, rows = max(lengths[i] for i in chunk), len(chunk)
        columns = {column for i in chunk for column in range(lengths[i] - probe_tokens, lengths[i])}
        total += forward(sizes, rows * width, rows * width**2, rows * len(columns))
    return total
