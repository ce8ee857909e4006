"""What the trackers draw of a step's credit: histograms, and the segments that lost the most. No tracker in here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rredcot_plugin.adapter.trace_record import CreditedBatch
from rredcot_plugin.credit.redistribution import mean_per_segment
from rredcot_plugin.report.text import readable_prompt, visible
from rredcot_plugin.types import Credit

COUNTS = ("rredcot/segments/tokens/histogram", "rredcot/segments/per_trace/histogram")
"""Histograms of integers."""

MAX_BINS = 64
MAX_SAMPLES = 8
MAX_CHARACTERS = 300
PROMPT_TOKENS = 1024
"""Tokens of a prompt's end that are decoded."""


@dataclass(frozen=True)
class Histogram:
    """``counts[i]`` of the ``values`` lie in [``edges[i]``, ``edges[i + 1]``); the last bin holds its end too."""

    values: np.ndarray
    counts: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class Sample:
    """The segment of a trace that lost the most. Texts are cut and without control characters; numbers may be NaN.

    ``place`` is its number and how many there are; ``credit`` is δ, ``before`` and ``after`` are V̂ around it (after
    the last segment: the reward).
    """

    group: Hashable
    prompt: str
    ground_truth: str
    reward: float
    place: str
    text: str
    credit: float
    before: float
    after: float


def credit_numbers(credit: Credit) -> dict[str, np.ndarray]:
    """The numbers of each histogram: one a segment, a boundary after the prompt, or a trace.

    Credit is δ.
    """
    segments, exists = credit.segments, credit.segments.exists
    rows = torch.arange(len(exists))[:, None]
    real = segments.segment_ids >= 0
    # the unmasked tokens in order, each with a number of its segment that no other row has
    owners = (segments.segment_ids + rows * segments.max_segments)[real]
    lengths = owners.unique_consecutive(return_counts=True)[1]
    numbers = {
        "rredcot/credit/histogram": credit.deltas[exists],
        "rredcot/credit/segment_advantage/histogram": mean_per_segment(credit.advantages, segments)[exists],
        "rredcot/value/boundary/histogram": credit.values[:, 1:][exists[:, 1:]],
        "rredcot/segments/tokens/histogram": lengths,
        "rredcot/segments/per_trace/histogram": segments.num_segments,
    }
    return {name: x.detach().cpu().double().numpy() for name, x in numbers.items()}


def histograms(batches: Sequence[Mapping[str, np.ndarray]]) -> tuple[dict[str, Histogram], int]:
    """Histograms over the numbers of all batches, and how many were left out because they are not finite.

    A name without any finite number has no histogram.
    """
    made: dict[str, Histogram] = {}
    dropped = 0
    for name in batches[0]:
        values = np.concatenate([numbers[name] for numbers in batches])
        finite = values[np.isfinite(values)]
        dropped += values.size - finite.size
        if finite.size:
            made[name] = histogram(finite, whole=name in COUNTS)
    return made, dropped


def histogram(values: np.ndarray, whole: bool = False) -> Histogram:
    """At most 64 bins of equal width over finite ``values``; centred on whole numbers where there are few of them.

    >>> drawn = histogram(np.array([1.0, 1.0, 3.0]), whole=True)
    >>> drawn.counts.tolist(), drawn.edges.tolist()
    ([2, 0, 1], [0.5, 1.5, 2.5, 3.5])
    """
    low, high = float(values.min()), float(values.max())
    bins = MAX_BINS
    if whole:
        bins = min(MAX_BINS, int(high - low) + 1)
        low, high = low - 0.5, high + 0.5
    size = max(1.0, abs(low), abs(high))
    if high - low < 1e-6 * size:  # numpy refuses bins that are narrower than numbers of that size are apart
        low, high = low - 0.5 * size, high + 0.5 * size
    counts, edges = np.histogram(values, bins=bins, range=(low, high))
    return Histogram(values, counts, edges)


def worst_samples(batch: CreditedBatch) -> list[Sample]:
    """The segments with the lowest credit, worst first: one a group, at most ``MAX_SAMPLES``."""
    deltas = batch.credit.deltas
    usable = batch.credit.segments.exists & torch.isfinite(deltas)
    if not bool(usable.any()):
        return []
    lowest, segment = torch.where(usable, deltas, torch.inf).min(dim=1)
    by_group: dict[Hashable, int] = {}
    for row in lowest.argsort(stable=True)[: int(usable.any(dim=1).sum())].tolist():
        by_group.setdefault(batch.rollouts.group_ids[row], row)
    chosen = list(by_group.values())[:MAX_SAMPLES]
    return [_sample(row, int(segment[row]), batch) for row in chosen]


def worst_of_groups(samples: Iterable[Sample]) -> list[Sample]:
    """The same choice out of those of several batches."""
    by_group: dict[Hashable, Sample] = {}
    for sample in sorted(samples, key=lambda sample: sample.credit):
        by_group.setdefault(sample.group, sample)
    return list(by_group.values())[:MAX_SAMPLES]


def _sample(row: int, segment: int, batch: CreditedBatch) -> Sample:
    rollouts, credit = batch.rollouts, batch.credit
    mask = rollouts.response_mask[row]
    inside = (credit.segments.segment_ids[row][mask] == segment).nonzero()[:, 0]
    text, spans = batch.rows.text_of(row, batch.table)
    start, end = int(spans[int(inside[0])][0]), int(spans[int(inside[-1])][1])
    truth = batch.ground_truth(row)
    count, reward = int(credit.segments.num_segments[row]), float(rollouts.rewards[row][mask].sum())
    return Sample(
        group=rollouts.group_ids[row],
        prompt=_end(readable_prompt(batch.prompt(row, PROMPT_TOKENS))),
        ground_truth="" if truth is None else _start(visible(truth)),
        reward=reward,
        place=f"{segment + 1} of {count}",
        text=_start(visible(text[start:end])),
        credit=float(credit.deltas[row, segment]),
        before=float(credit.values[row, segment]),
        after=float(credit.values[row, segment + 1]) if segment + 1 < count else reward,
    )


def _start(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _end(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else "…" + text[1 - MAX_CHARACTERS :]
