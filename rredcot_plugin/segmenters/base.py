"""What the shipped segmenters have in common: options, checks and the way from cuts to a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rredcot_plugin.checks import check_names
from rredcot_plugin.registry import check_count
from rredcot_plugin.segmenters.assemble import segment
from rredcot_plugin.segmenters.limits import Limits
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.text.answers import MARKERS
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray


NEEDS = ("uncertainty", *(field.name for field in fields(Rollouts)))
"""What ``needs`` may name."""


@dataclass(frozen=True)
class CutSegmenter:
    """Base of a segmenter that says where a segment *may* begin; the rules are kept for it.

    A subclass implements ``propose``, and must not look ahead: whether a segment may begin at a token is a function
    of the tokens before it. ``min_segment_tokens`` is the number of tokens that a segment has before another may
    begin, so only the last one can be shorter. ``max_segments`` is the greatest number of segments of a trace; the
    first half go to whatever is proposed first, the others are spread over ``max_response_tokens`` (see
    `Limits.admit`). ``answer_markers`` name what opens a final answer, inside which no segment begins.

    Raises:
        ValueError: a limit under 1, an unknown marker; on call, rollouts without what the segmenter reads.
    """

    min_segment_tokens: int = 1
    max_segments: int = 64
    max_response_tokens: int = 8192
    answer_markers: Sequence[str] = MARKERS

    needs: ClassVar[tuple[str, ...]] = ("texts",)
    """Fields of ``Rollouts`` that must be there; ``uncertainty`` stands for entropies or log_probs."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Fields that are read where they are there, and done without where not."""

    def __post_init__(self) -> None:
        for name in ("min_segment_tokens", "max_segments", "max_response_tokens"):
            check_count(name, getattr(self, name))
        unknown = set(self.answer_markers) - set(MARKERS)
        if unknown or isinstance(self.answer_markers, str):
            raise ValueError(
                f"answer_markers={self.answer_markers!r}: expected a list of names from {', '.join(MARKERS)}"
            )

    def propose(self, trace: Trace) -> NDArray[np.int64]:
        """Indices of the tokens at which a segment may begin, in any order."""
        raise NotImplementedError(f"{type(self).__name__} has no method propose(self, trace)")

    def __call__(self, rollouts: Rollouts) -> Segments:
        self.check(rollouts)
        return segment(rollouts, self.propose, self.limits, self.answer_markers)

    @property
    def limits(self) -> Limits:
        return Limits(self.min_segment_tokens, self.max_segments, self.max_response_tokens)

    def check(self, rollouts: Rollouts) -> None:
        """Raise ``ValueError`` if the rollouts lack something that this segmenter reads."""
        for name in check_names(self, "needs", NEEDS):
            read = ("entropies", "log_probs") if name == "uncertainty" else (name,)
            if all(getattr(rollouts, field) is None for field in read):
                expected = "texts and token_offsets" if name == "texts" else " or ".join(read)
                raise ValueError(f"{type(self).__name__}: expected Rollouts with {expected}, got None")
