"""Segmenters that look at a finished trace: for reports and offline scoring, not for training.

Where a segment begins depends here on tokens that come later: cuts are merged by their scores over the whole trace, and stand
in front of the keyword, the improbable token or the last answer. A baseline that depends on such a boundary biases the
policy gradient (docs/reference/math.md), so each has a counterpart without the suffix whose boundaries are stopping times.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.assemble import build_segments, legal
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.keyword import KEYWORDS, keyword_spans
from rredcot_plugin.segmenters.text_rules import line_ends, sentence_ends
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.text.answers import answer_start
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Scored = tuple[NDArray[np.int64], NDArray[np.float64]]
    """Token indices, and how much a cut there is worth."""


class RetrospectiveSegmenter(CutSegmenter):
    """Base of a segmenter that scores cuts: the best ``max_segments`` − 1 stay, and the last answer is never cut."""

    retrospective: ClassVar[bool] = True

    def __call__(self, rollouts: Rollouts) -> Segments:
        self.check(rollouts)
        return build_segments(rollouts, self._decide)

    def score(self, trace: Trace) -> Scored:
        raise NotImplementedError

    def _decide(self, trace: Trace) -> NDArray[np.int64]:
        answer = self._answer(trace)
        end = answer if answer is not None else trace.length
        cuts, scores = self.score(trace)
        inside = legal(trace, cuts)
        inside = inside[inside < end]
        worth = dict(zip(cuts.tolist(), scores.tolist(), strict=True))
        inside = _spaced(inside, end, self.min_segment_tokens)
        most = max(0, self.limits.most - (2 if answer is not None else 1))
        kept = _best(inside, np.array([worth[cut] for cut in inside.tolist()]), end, most)
        return np.append(kept, answer) if answer is not None and self.limits.most > 1 else kept

    def _answer(self, trace: Trace) -> int | None:
        """The token that begins the last answer; None if there is none, or nothing before it."""
        char = answer_start(trace.text, self.answer_markers) if trace.text is not None else None
        if char is None or trace.spans is None:
            return None
        token = int(np.searchsorted(trace.spans[:, 1], char, side="right"))
        return token if 0 < token < trace.length and trace.may_begin(np.array([token]))[0] else None


@register_segmenter("newline_entropy_retrospective")
@dataclass(frozen=True)
class NewlineEntropyRetrospective(RetrospectiveSegmenter):
    """The paper's newline-entropy segmentation, by one reading (RREDCoT, arXiv 2606.06475).

    Split at line ends, then merge neighbours across the boundary of *lowest* uncertainty until ``target_segments``
    remain.
    """

    target_segments: int = 16

    needs: ClassVar[tuple[str, ...]] = ("texts", "uncertainty")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("target_segments", self.target_segments)
        object.__setattr__(self, "max_segments", min(self.max_segments, self.target_segments))

    def score(self, trace: Trace) -> Scored:
        ends = line_ends(trace)
        return ends, _of_next(trace)[ends]


@register_segmenter("hybrid_retrospective")
@dataclass(frozen=True)
class HybridRetrospective(RetrospectiveSegmenter):
    """The paper's keyword-entropy segmentation, by another reading: *before* keywords, of which those stay at which the
    model was least sure; without a keyword at line and sentence ends, where it was least sure."""

    uses: ClassVar[tuple[str, ...]] = ("uncertainty",)

    def score(self, trace: Trace) -> Scored:
        keywords = np.unique(keyword_spans(trace, KEYWORDS)[0])
        cuts = np.union1d(keywords, sentence_ends(trace))
        cuts = cuts[cuts < trace.length]
        worth = _of_next(trace)[cuts]
        return cuts, worth + np.isin(cuts, keywords) * (1.0 + worth.max(initial=0.0))


@register_segmenter("adaptive_retrospective")
@dataclass(frozen=True)
class AdaptiveRetrospective(RetrospectiveSegmenter):
    """Change points of the mean uncertainty of a finished trace, by PELT (arXiv 1101.1438), with the ``ruptures`` package.

    The uncertainty is averaged over bins of ``bin_tokens``; a change point must lower the squared error by ``penalty`` *
    variance * log(bins).

    Raises:
        ValueError: options out of range; ruptures is not installed; rollouts without entropies and log-probs.
    """

    penalty: float = 2.0
    bin_tokens: int = 8

    needs: ClassVar[tuple[str, ...]] = ("uncertainty",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("bin_tokens", self.bin_tokens)
        if isinstance(self.penalty, bool) or not isinstance(self.penalty, int | float) or not self.penalty > 0:
            raise ValueError(f"penalty={self.penalty!r}: expected a number above 0")
        if find_spec("ruptures") is None:
            raise ValueError(
                "segmenter adaptive_retrospective: ruptures is not installed; pip install 'rredcot[adaptive]'"
            )

    def score(self, trace: Trace) -> Scored:
        assert trace.uncertainty is not None
        starts = np.arange(0, trace.length, self.bin_tokens)
        sizes = np.diff(np.append(starts, trace.length))
        signal = np.add.reduceat(trace.uncertainty, starts) / sizes
        cuts = _change_points(signal, self.penalty)
        edges = np.concatenate([[0], cuts, [len(signal)]])
        means = np.add.reduceat(signal, edges[:-1]) / np.diff(edges)
        return starts[cuts], np.abs(np.diff(means))


def _change_points(signal: NDArray[np.float64], penalty: float) -> NDArray[np.int64]:
    """Indices at which a new level begins; none for a signal too short or flat."""
    import ruptures  # an extra; its import takes scipy along

    variance = float(signal.var())
    if len(signal) < 4 or variance == 0.0:
        return np.zeros(0, dtype=np.int64)
    search = ruptures.KernelCPD(kernel="linear", min_size=2).fit(signal[:, None])
    found = search.predict(pen=penalty * variance * np.log(len(signal)))
    return np.array(found[:-1], dtype=np.int64)


def _of_next(trace: Trace) -> NDArray[np.float64]:
    """Entropy of each token's distribution, else its surprisal, else 0."""
    if trace.entropies is not None:
        return trace.entropies.astype(np.float64)
    return np.zeros(trace.length) if trace.log_probs is None else -trace.log_probs.astype(np.float64)


def _spaced(cuts: NDArray[np.int64], end: int, least: int) -> NDArray[np.int64]:
    """Cuts that leave no segment shorter than ``least`` tokens, first come first kept."""
    kept, last = [], 0
    for cut in cuts.tolist():
        if cut - last >= least and end - cut >= least:
            kept.append(cut)
            last = cut
    return np.array(kept, dtype=np.int64)


def _best(cuts: NDArray[np.int64], scores: NDArray[np.float64], end: int, most: int) -> NDArray[np.int64]:
    """The ``most`` cuts with the highest scores; of those that tie for the last places, ones that lie evenly."""
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
