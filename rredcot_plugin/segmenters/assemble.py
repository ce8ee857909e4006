"""From candidate cuts to a partition that keeps every rule: shared by all segmenters.

A segmenter proposes cuts ("a segment may begin at this token") with scores; this module enforces the
rest: never inside a multi-byte character, a least segment length, a greatest number of segments (the
cut with the smallest score goes first, of equal ones those that leave even lengths stay), and one cut
where the answer begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.answers import MARKERS, answer_start
from rredcot_plugin.types import MASKED, Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Trace:
    """One response without its masked tokens: n tokens, each with a span of characters and a surprise.

    ``columns`` are the tokens' places in the response. ``spans`` is None without texts. ``surprise`` is the
    entropy where the rollouts have it, else the negative log-prob of the sampled token (whose mean it is),
    else None; nats per token. ``log_probs`` are those of the sampled tokens, or None.
    """

    columns: NDArray[np.int64]
    text: str | None
    spans: NDArray[np.int64] | None
    surprise: NDArray[np.float32] | None
    log_probs: NDArray[np.float32] | None

    @property
    def length(self) -> int:
        return len(self.columns)

    def tokens_from(self, chars: Sequence[int]) -> NDArray[np.int64]:
        """For each character the first token that begins at or behind it."""
        assert self.spans is not None
        return np.searchsorted(self.spans[:, 0], np.asarray(chars, dtype=np.int64), side="left")

    def tokens_behind(self, pattern: re.Pattern[str]) -> NDArray[np.int64]:
        """The token that follows each match of a pattern in the text."""
        assert self.text is not None
        return self.tokens_from([found.end() for found in pattern.finditer(self.text)])

    def tokens_at(self, chars: Sequence[int]) -> NDArray[np.int64]:
        """For each character the first token that reaches beyond it: the one that holds it."""
        assert self.spans is not None
        return np.searchsorted(self.spans[:, 1], np.asarray(chars, dtype=np.int64), side="right")


Proposer = Callable[[Trace], "tuple[NDArray[np.int64], NDArray[np.float64]]"]
"""Trace -> (cuts, scores): token indices at which a segment may begin, and how much each is worth."""


def cuts_at(cuts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cuts that are all worth the same."""
    return cuts, np.ones(len(cuts))


def segment(
    rollouts: Rollouts,
    propose: Proposer,
    min_segment_tokens: int = 1,
    max_segments: int = 64,
    answer_markers: Sequence[str] = MARKERS,
) -> Segments:
    """Apply ``propose`` to every trace and build the partition.

    No cut is placed behind the start of the final answer, which ``answer_markers`` find.
    """
    mask = rollouts.response_mask.cpu().numpy()
    ids = np.full(mask.shape, MASKED, dtype=np.int64)
    counts = np.zeros(len(mask), dtype=np.int64)
    for row in range(len(mask)):
        columns = np.flatnonzero(mask[row])
        if len(columns) == 0:
            continue
        trace = _trace(rollouts, row, columns)
        answer = _answer_token(trace, answer_markers)
        cuts = _legal_cuts(trace, *propose(trace), answer, min_segment_tokens, max_segments)
        ids[row, columns] = np.searchsorted(cuts, np.arange(len(columns)), side="right")
        counts[row] = len(cuts) + 1
    device = rollouts.token_ids.device
    return Segments(torch.from_numpy(ids).to(device), torch.from_numpy(counts).to(device))


def _trace(rollouts: Rollouts, row: int, columns: NDArray[np.int64]) -> Trace:
    entropies, log_probs = _signal(rollouts.entropies, row, columns), _signal(rollouts.log_probs, row, columns)
    surprise = entropies if entropies is not None else None if log_probs is None else -log_probs
    if rollouts.texts is None or rollouts.token_offsets is None:
        return Trace(columns, None, None, surprise, log_probs)
    spans = np.asarray(rollouts.token_offsets[row], dtype=np.int64).reshape(-1, 2)
    if len(spans) != len(columns):  # one span a column, masked ones included
        spans = spans[columns]
    return Trace(columns, rollouts.texts[row], spans, surprise, log_probs)


def _signal(tensor: torch.Tensor | None, row: int, columns: NDArray[np.int64]) -> NDArray[np.float32] | None:
    if tensor is None:
        return None
    signal: NDArray[np.float32] = tensor[row].float().cpu().numpy()[columns]
    return signal


def _answer_token(trace: Trace, markers: Sequence[str]) -> int | None:
    """The token that begins the final answer; None if there is none, or nothing before it."""
    char = answer_start(trace.text, markers) if trace.text is not None else None
    token = int(trace.tokens_at([char])[0]) if char is not None else 0
    return token if 0 < token < trace.length else None


def _legal_cuts(
    trace: Trace,
    cuts: NDArray[np.int64],
    scores: NDArray[np.float64],
    answer: int | None,
    least: int,
    most: int,
) -> NDArray[np.int64]:
    """Sorted token indices in 1..n−1 that keep every rule."""
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
    """The ``most`` cuts with the highest scores; of those that tie for the last places, ones that lie evenly.

    Removing the smallest score again and again leaves the same cuts, in more steps.
    """
    if len(cuts) <= most:
        return cuts
    if most == 0:
        return cuts[:0]
    level = np.partition(scores, -most)[-most]
    above = cuts[scores > level]
    return np.union1d(above, _evenly(cuts[scores == level], end, most - len(above)))


def _evenly(cuts: NDArray[np.int64], end: int, most: int) -> NDArray[np.int64]:
    """Up to ``most`` of the cuts: the nearest to each of as many places that part 0..end in equal stretches."""
    places = end * np.arange(1, most + 1) / (most + 1)
    right = np.searchsorted(cuts, places).clip(max=len(cuts) - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(places - cuts[left] <= cuts[right] - places, left, right)
    found: NDArray[np.int64] = np.unique(cuts[nearest])
    return found
