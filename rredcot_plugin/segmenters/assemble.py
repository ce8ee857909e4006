"""From candidate cuts to a partition that keeps every rule: shared by all segmenters.

A segmenter proposes cuts ("a segment may begin at this token") with scores; this module enforces the
rest: never inside a multi-byte character, a least segment length, a greatest number of segments (the
cut with the smallest score goes first), and one cut where the answer begins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.answers import answer_start
from rredcot_plugin.types import MASKED, Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Trace:
    """One response without its masked tokens: n tokens, each with a span of characters and a surprise.

    ``spans`` is None without texts. ``surprise`` is the entropy where the rollouts have it, else the
    negative log-prob of the sampled token (whose mean it is), else None; nats per token.
    """

    length: int
    text: str | None
    spans: NDArray[np.int64] | None
    surprise: NDArray[np.float32] | None

    def token_from(self, char: int) -> int:
        """The first token that begins at or behind a character."""
        assert self.spans is not None
        return int(np.searchsorted(self.spans[:, 0], char, side="left"))

    def token_at(self, char: int) -> int:
        """The first token that reaches beyond a character: the one that holds it."""
        assert self.spans is not None
        return int(np.searchsorted(self.spans[:, 1], char, side="right"))


Proposer = Callable[[Trace], "tuple[NDArray[np.int64], NDArray[np.float64]]"]
"""Trace -> (cuts, scores): token indices at which a segment may begin, and how much each is worth."""


def no_cuts() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.zeros(0, dtype=np.int64), np.zeros(0)


def require_texts(rollouts: Rollouts, segmenter: str) -> None:
    """Raise ``ValueError`` if a text segmenter gets rollouts without texts and offsets."""
    if rollouts.texts is None:
        raise ValueError(f"segmenter {segmenter!r}: expected Rollouts.texts and token_offsets, got None")


def check_limits(min_segment_tokens: int, max_segments: int) -> None:
    """Raise ``ValueError`` unless both limits are whole numbers from 1."""
    for key, value in (("min_segment_tokens", min_segment_tokens), ("max_segments", max_segments)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key}={value!r}: allowed are whole numbers from 1")


def segment(rollouts: Rollouts, propose: Proposer, min_segment_tokens: int, max_segments: int) -> Segments:
    """Apply ``propose`` to every trace and build the partition (method.md, section 1)."""
    mask = rollouts.response_mask.cpu().numpy()
    ids = np.full(mask.shape, MASKED, dtype=np.int64)
    counts = np.zeros(len(mask), dtype=np.int64)
    for row in range(len(mask)):
        columns = np.flatnonzero(mask[row])
        if len(columns) == 0:
            continue
        trace = _trace(rollouts, row, columns)
        cuts = _legal_cuts(trace, *propose(trace), min_segment_tokens, max_segments)
        ids[row, columns] = np.searchsorted(cuts, np.arange(len(columns)), side="right")
        counts[row] = len(cuts) + 1
    device = rollouts.token_ids.device
    return Segments(torch.from_numpy(ids).to(device), torch.from_numpy(counts).to(device))


def _trace(rollouts: Rollouts, row: int, columns: NDArray[np.int64]) -> Trace:
    signal = rollouts.entropies if rollouts.entropies is not None else rollouts.log_probs
    surprise = None
    if signal is not None:
        surprise = signal[row].float().cpu().numpy()[columns]
        surprise = surprise if rollouts.entropies is not None else -surprise
    if rollouts.texts is None or rollouts.token_offsets is None:
        return Trace(len(columns), None, None, surprise)
    spans = np.asarray(rollouts.token_offsets[row], dtype=np.int64).reshape(-1, 2)
    if len(spans) != len(columns):  # one span a column, masked ones included
        spans = spans[columns]
    return Trace(len(columns), rollouts.texts[row], spans, surprise)


def _legal_cuts(
    trace: Trace, cuts: NDArray[np.int64], scores: NDArray[np.float64], least: int, most: int
) -> NDArray[np.int64]:
    """Sorted token indices in 1..n−1 that keep every rule."""
    answer = None
    if trace.text is not None:
        char = answer_start(trace.text)
        answer = trace.token_at(char) if char is not None else None
        answer = answer if answer is not None and 0 < answer < trace.length else None
    end = answer if answer is not None else trace.length
    inside = (cuts > 0) & (cuts < end)
    if trace.spans is not None and len(cuts):
        clipped = np.clip(cuts, 1, max(1, trace.length - 1))
        starts = trace.spans[np.minimum(clipped, trace.length - 1), 0]
        inside &= starts >= trace.spans[clipped - 1, 1]
    cuts, first = np.unique(cuts[inside], return_index=True)
    kept = _spaced(cuts, scores[inside][first], end, least)
    cuts, scores = kept
    cuts = _merge(cuts, scores, end, max(0, most - (2 if answer is not None else 1)))
    if answer is not None and most > 1:
        cuts = np.append(cuts, answer)
    return cuts


def _spaced(
    cuts: NDArray[np.int64], scores: NDArray[np.float64], end: int, least: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Drop cuts that would leave a segment shorter than ``least`` tokens, first come first kept."""
    if least <= 1 or len(cuts) == 0:
        return cuts, scores
    keep, last = [], 0
    for i, cut in enumerate(cuts.tolist()):
        if cut - last >= least and end - cut >= least:
            keep.append(i)
            last = cut
    return cuts[keep], scores[keep]


def _merge(cuts: NDArray[np.int64], scores: NDArray[np.float64], end: int, most: int) -> NDArray[np.int64]:
    """Remove the cut with the smallest score until ``most`` are left; ties merge the shortest pair.

    A heap with lazy deletion: 10,000 newlines cost 10,000 log 10,000 steps.
    """
    n = len(cuts)
    if n <= most:
        return cuts
    where = [0, *cuts.tolist(), end]
    before, after = list(range(-1, n + 1)), list(range(1, n + 3))

    def entry(i: int) -> tuple[float, int, int]:
        return float(scores[i - 1]), where[after[i]] - where[before[i]], i

    heap = [entry(i) for i in range(1, n + 1)]
    heapq.heapify(heap)
    gone = [False] * (n + 2)
    left = n
    while left > most:
        item = heapq.heappop(heap)
        i = item[2]
        if gone[i] or item != entry(i):  # stale: the cut is gone, or its pair has grown since
            continue
        gone[i] = True
        left -= 1
        after[before[i]], before[after[i]] = after[i], before[i]
        for neighbour in (before[i], after[i]):
            if 1 <= neighbour <= n:
                heapq.heappush(heap, entry(neighbour))
    return np.array([cut for i, cut in enumerate(cuts.tolist(), start=1) if not gone[i]], dtype=np.int64)
