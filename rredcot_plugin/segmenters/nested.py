"""``nested``: segments of segments, such as lines inside the turns of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rredcot_plugin.registry import SEGMENTERS, register_segmenter
from rredcot_plugin.segmenters.answer_cuts import find_answers
from rredcot_plugin.segmenters.assemble import build_segments, legal
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.limits import Limits, Preferred
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.types import Rollouts, Segments, check_partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_LIMIT = 2**31
"""More tokens, and more segments, than any trace has."""


@register_segmenter("nested")
@dataclass(frozen=True)
class NestedSegmenter(CutSegmenter):
    """Several segmenters in one, coarse to fine: a boundary of a coarse level is also one of every finer level.

    As a segmenter it returns the finest level, the common refinement of all ``levels``; `all_levels` returns each.
    ``levels`` names them coarse to fine, each as a registered name, ``{name: ..., options: {...}}`` or a path that
    the registry takes. A level cuts where its segmenter does alone, with the limits in its own options, else with
    none, and with those of its ``answer_markers`` that are also here, unless its options say otherwise. Of L levels the i-th has at most
    i/L of ``max_segments``; that room is kept for it, so that no coarse boundary gives way to finer ones. A segment that
    ends at a coarse boundary may have fewer than ``min_segment_tokens``. The final answer is a segment of its own on
    every level whose markers find it: within ``code``, a block of code is what is cut.

    Raises:
        ValueError: no levels, an entry of another form, an unknown name, options that its segmenter does not take;
            on call, rollouts without what one of the levels reads.
    """

    levels: Sequence[str | Mapping[str, Any]] = ("turn", "newline")
    members: tuple[Callable[[Rollouts], Segments], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.levels, str | Mapping) or not self.levels:
            raise ValueError(f"levels={self.levels!r}: expected a list of segmenters, coarse to fine")
        members = tuple(self._member(entry) for entry in self.levels)
        object.__setattr__(self, "members", members)
        for name in ("needs", "uses"):  # what a level reads, this segmenter reads
            read = dict.fromkeys(word for member in members for word in getattr(member, name, ()))
            object.__setattr__(self, name, tuple(read))

    @property
    def retrospective(self) -> bool:
        """Whether a level looks at a finished trace."""
        return any(getattr(member, "retrospective", False) for member in self.members)

    def __call__(self, rollouts: Rollouts) -> Segments:
        return self.all_levels(rollouts)[-1]

    def all_levels(self, rollouts: Rollouts) -> list[Segments]:
        """One partition a level, coarse to fine, each a refinement of the one before it."""
        found: list[Segments] = []
        for number, member in enumerate(self.members):
            found.append(self._refined(number, found[-1] if found else None, member, rollouts))
        return found

    def _refined(
        self, number: int, coarse: Segments | None, member: Callable[[Rollouts], Segments], rollouts: Rollouts
    ) -> Segments:
        """``coarse`` with as many cuts of ``member`` added as the rules leave room for."""
        own = member(rollouts)
        check_partition(own, rollouts.response_mask)
        wanted = _starts(own, rollouts)
        kept = _starts(coarse, rollouts) if coarse is not None else None
        limits = self._limits_of(number)

        markers = getattr(member, "answer_markers", self.answer_markers)

        def decide(trace: Trace) -> NDArray[np.int64]:
            answers = find_answers(trace, markers)
            cuts = answers.outside(legal(trace, next(wanted)), with_openings=True)
            first = answers.openings if kept is None else Preferred.always(next(kept))
            return legal(trace, limits.admit(cuts, first))

        return build_segments(rollouts, decide)

    def _limits_of(self, number: int) -> Limits:
        most = max(1, self.max_segments * (number + 1) // len(self.members))
        coarser = max(1, self.max_segments * number // len(self.members))
        reserved = coarser - 1 if number else 1
        return Limits(self.min_segment_tokens, most, self.max_response_tokens, reserved)

    def _member(self, entry: str | Mapping[str, Any]) -> Callable[[Rollouts], Segments]:
        name, options = _parsed(entry)
        factory = SEGMENTERS.factory(name)
        if isinstance(factory, type) and issubclass(factory, CutSegmenter):
            markers = [marker for marker in factory.answer_markers if marker in self.answer_markers]
            options = {"max_segments": NO_LIMIT, "answer_markers": markers} | options
        member: Callable[[Rollouts], Segments] = SEGMENTERS.get(name, **options)
        return member


def _parsed(entry: Any) -> tuple[str | Mapping[str, Any], dict[str, Any]]:
    """Name or path of a level, and its options."""
    if isinstance(entry, str) or (isinstance(entry, Mapping) and "path" in entry):
        return entry, {}
    options = entry.get("options", {}) if isinstance(entry, Mapping) else None
    if not isinstance(options, Mapping) or "name" not in entry or set(entry) - {"name", "options"}:
        raise ValueError(f"levels: expected a name, {{name, options}} or {{path, name}}, got {entry!r}")
    return entry["name"], dict(options)


def _starts(segments: Segments, rollouts: Rollouts) -> Iterator[NDArray[np.int64]]:
    """For each response that is not empty the unmasked tokens, counted from 0, at which segments 1, 2, ... begin."""
    mask = rollouts.response_mask.cpu().numpy()
    ids = segments.segment_ids.cpu().numpy()
    for row in np.flatnonzero(mask.any(axis=1)):
        yield np.flatnonzero(np.diff(ids[row, mask[row]], prepend=0) > 0)
