"""What the shipped segmenters have in common: options, checks and the way from cuts to a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rredcot_plugin.answers import MARKERS
from rredcot_plugin.registry import check_count
from rredcot_plugin.segmenters.assemble import Trace, segment
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CutSegmenter:
    """Base of a segmenter that says where a segment *may* begin; the rules are kept for it.

    A subclass implements ``propose``. ``min_segment_tokens`` is the least length of a segment,
    ``max_segments`` the greatest number a trace (the cut with the smallest score goes first), and
    ``answer_markers`` name what opens the final answer, which is never cut.

    Raises:
        ValueError: limits under 1, an unknown marker; on call, rollouts without what the segmenter reads.
    """

    min_segment_tokens: int = 1
    max_segments: int = 64
    answer_markers: Sequence[str] = MARKERS

    needs: ClassVar[tuple[str, ...]] = ("texts",)
    """Fields of ``Rollouts`` that must be there; ``surprise`` stands for entropies or log_probs."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Fields that are read where they are there, and done without where not."""

    def __post_init__(self) -> None:
        check_count("min_segment_tokens", self.min_segment_tokens)
        check_count("max_segments", self.max_segments)
        unknown = set(self.answer_markers) - set(MARKERS)
        if unknown or isinstance(self.answer_markers, str):
            raise ValueError(f"answer_markers={self.answer_markers!r}: allowed are lists of {', '.join(MARKERS)}")

    def propose(self, trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Token indices at which a segment may begin, and how much each is worth."""
        raise NotImplementedError

    def __call__(self, rollouts: Rollouts) -> Segments:
        self.check(rollouts)
        return segment(rollouts, self.propose, self.min_segment_tokens, self.most_segments, self.answer_markers)

    @property
    def most_segments(self) -> int:
        """The greatest number of segments a trace."""
        return self.max_segments

    def check(self, rollouts: Rollouts) -> None:
        """Raise ``ValueError`` if the rollouts lack something that this segmenter reads."""
        for name in self.needs:
            fields = ("entropies", "log_probs") if name == "surprise" else (name,)
            if all(getattr(rollouts, field) is None for field in fields):
                expected = "texts and token_offsets" if name == "texts" else " or ".join(fields)
                raise ValueError(f"{type(self).__name__}: expected Rollouts with {expected}, got None")
