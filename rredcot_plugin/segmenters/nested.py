"""``nested``: segments of segments, such as lines inside the turns of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rredcot_plugin.registry import SEGMENTERS, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, segment
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.types import Rollouts, Segments, check_partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Cuts = tuple[NDArray[np.int64], NDArray[np.float64]]
    """Token indices at which segments begin (0 left out), and how much each is worth."""

NO_LIMIT = 2**31
"""More tokens, and more segments, than any trace has."""


@register_segmenter("nested")
@dataclass(frozen=True)
class NestedSegmenter(CutSegmenter):
    """Several segmenters in one, coarse to fine: a boundary of a coarse level is one of every finer level.

    As a segmenter it returns the finest level, the common refinement of all ``levels``; `all_levels` returns each.
    ``levels`` names them coarse to fine, each as a registered name, ``{name: ..., options: {...}}`` or a path that
    the registry takes. A level cuts where its segmenter does alone, with the limits in its own options, else with
    none, and with ``answer_markers`` from here unless its options say otherwise. When ``min_segment_tokens`` and
    ``max_segments``, which hold for the finest level and so for all, do not leave room for every cut, fine ones go
    before coarse ones. The final answer is a segment of its own on every level.

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

    def __call__(self, rollouts: Rollouts) -> Segments:
        return self.all_levels(rollouts)[-1]

    def all_levels(self, rollouts: Rollouts) -> list[Segments]:
        """One partition a level, coarse to fine, each a refinement of the one before it."""
        found: list[Segments] = []
        for member in self.members:
            found.append(self._refined(found[-1] if found else None, member, rollouts))
        return found

    def _refined(
        self, coarse: Segments | None, member: Callable[[Rollouts], Segments], rollouts: Rollouts
    ) -> Segments:
        """``coarse`` with as many cuts of ``member`` added as the rules leave room for."""
        wanted = _cuts_of(member, rollouts)
        kept = _starts(coarse, rollouts) if coarse is not None else None

        def propose(trace: Trace) -> Cuts:
            return next(wanted) if kept is None else self._joined(next(kept), *next(wanted))

        return segment(rollouts, propose, self.min_segment_tokens, self.max_segments, self.answer_markers)

    def _joined(self, kept: NDArray[np.int64], cuts: NDArray[np.int64], scores: NDArray[np.float64]) -> Cuts:
        """Kept cuts, which no score can push out, and those of ``cuts`` that leave them their distance."""
        if len(kept) + 1 >= self.max_segments:
            return kept, np.full(len(kept), np.inf)
        following = np.append(kept, NO_LIMIT)[np.searchsorted(kept, cuts)]
        fits = following - cuts >= self.min_segment_tokens  # one too near behind a kept cut is dropped later
        return (
            np.concatenate([kept, cuts[fits]]),
            np.concatenate([np.full(len(kept), np.inf), np.nan_to_num(scores[fits])]),
        )

    def _member(self, entry: str | Mapping[str, Any]) -> Callable[[Rollouts], Segments]:
        name, options = _parsed(entry)
        factory = SEGMENTERS.factory(name)
        if isinstance(factory, type) and issubclass(factory, CutSegmenter):
            options = {"max_segments": NO_LIMIT, "answer_markers": self.answer_markers} | options
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


def _cuts_of(member: Callable[[Rollouts], Segments], rollouts: Rollouts) -> Iterator[Cuts]:
    """Where ``member`` cuts each response that is not empty, and what each cut is worth."""
    if not isinstance(member, CutSegmenter) or type(member).__call__ is not CutSegmenter.__call__:
        whole = member(rollouts)
        check_partition(whole, rollouts.response_mask)
        return ((starts, np.ones(len(starts))) for starts in _starts(whole, rollouts))
    member.check(rollouts)
    proposed: list[Cuts] = []

    def propose(trace: Trace) -> Cuts:
        proposed.append(member.propose(trace))
        return proposed[-1]

    limits = member.min_segment_tokens, member.most_segments, member.answer_markers
    starts = _starts(segment(rollouts, propose, *limits), rollouts)
    return ((kept, _worth(kept, *cuts)) for kept, cuts in zip(starts, proposed, strict=True))


def _worth(kept: NDArray[np.int64], cuts: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score of each kept cut; 0 for the start of the answer where nobody proposed it."""
    places, first = np.unique(cuts, return_index=True)
    if len(places) == 0:
        return np.zeros(len(kept))
    at = np.searchsorted(places, kept).clip(max=len(places) - 1)
    return np.where(places[at] == kept, scores[first][at], 0.0)


def _starts(segments: Segments, rollouts: Rollouts) -> Iterator[NDArray[np.int64]]:
    """For each response that is not empty the unmasked tokens, counted from 0, at which segments 1, 2, ... begin."""
    mask = rollouts.response_mask.cpu().numpy()
    ids = segments.segment_ids.cpu().numpy()
    for row in np.flatnonzero(mask.any(axis=1)):
        yield np.flatnonzero(np.diff(ids[row, mask[row]], prepend=0) > 0)
