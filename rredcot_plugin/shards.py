"""The work of a step that looks at one group at a time, on parts of the batch, so that processes can share it.

What needs the whole batch passes between: outcomes and how the responses answer (``Seen``), the lowest outcome, the
scale of values. The parts of a batch then give what the whole gives, to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.baselines.weights import FLOOR, gradient_norm_proxy
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import Manner, ProbeEncoder
from rredcot_plugin.groups import GroupStats
from rredcot_plugin.probing import ProbePlan, place_probes
from rredcot_plugin.rows import StepRows
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.types import MASKED, Rollouts, Segments, check_partition
from rredcot_plugin.values.features import boundary_features
from rredcot_plugin.values.proposals import Proposals, lowest_of_others

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

NARROW = 1 << 15

Index = list[int]
"""Which rows of the batch a part holds, in its order."""

Ask = Callable[[str, Sequence[tuple[Any, ...]]], list[Any]]
"""Name of a method of ``GroupWork``, and its arguments for every part -> its result of every part."""


@dataclass(frozen=True)
class _Array:
    """A tensor on its way; int64 is ``narrowed`` to int16 where it fits, as numbers of segments do."""

    data: NDArray[Any]
    narrowed: bool = False

    @classmethod
    def of(cls, data: NDArray[Any]) -> _Array:
        fits = data.dtype == np.int64 and data.size > 0 and data.min() >= -NARROW and data.max() < NARROW
        return cls(data.astype(np.int16), narrowed=True) if fits else cls(data)

    def tensor(self) -> Tensor:
        """A copy: what Ray hands out must not be written to."""
        return torch.from_numpy(self.data.astype(np.int64) if self.narrowed else self.data.copy())


@dataclass(frozen=True)
class _Parcel:
    """A dataclass on its way."""

    kind: type
    fields: dict[str, Any]


def parcel(x: Any) -> Any:
    """``x`` for another process, with arrays for its tensors, down to the fields of dataclasses and lists of tensors.

    A tensor would take its whole storage along, which for a row of a jagged tensor is the batch; and Ray reads arrays
    without copying them.
    """
    if isinstance(x, torch.Tensor):
        return _Array.of(x.detach().cpu().numpy())
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return _Parcel(type(x), {f.name: parcel(getattr(x, f.name)) for f in dataclasses.fields(x)})
    if type(x) is tuple:
        return tuple(map(parcel, x))
    if type(x) is dict:
        return {name: parcel(value) for name, value in x.items()}
    if isinstance(x, list) and x and isinstance(x[0], (torch.Tensor, Segments)):
        return list(map(parcel, x))
    return x


def unparcel(x: Any) -> Any:
    """What ``parcel`` was given."""
    if isinstance(x, _Array):
        return x.tensor()
    if isinstance(x, _Parcel):
        return x.kind(**{name: unparcel(value) for name, value in x.fields.items()})
    if type(x) is tuple:
        return tuple(map(unparcel, x))
    if type(x) is dict:
        return {name: unparcel(value) for name, value in x.items()}
    if isinstance(x, list) and x and isinstance(x[0], (_Array, _Parcel)):
        return list(map(unparcel, x))
    return x


class Part(Protocol):
    """Rows of a batch, or what leads to them."""

    def take(self, index: Index) -> Any: ...


@dataclass(frozen=True)
class Seen:
    """What the whole batch has to know of a part before probes are placed: segments of every level, coarse to fine, how
    its responses answer, what they earned, and tokens of prompts and responses. ``lookahead`` says why the segmenter's
    boundaries are no stopping times; None where no reason is known."""

    levels: list[Segments]
    manner: Manner
    outcomes: Float[Tensor, " B"]
    tokens: int
    lookahead: str | None = None


class GroupWork:
    """Whole groups of a batch, from their tokens to the features of their states. Keeps them between its calls, which
    come in the order ``read``, ``plan``, ``hear``, ``features`` and ``state_weight``."""

    def __init__(self, config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder) -> None:
        self.config, self.table, self.encoder = config, table, encoder
        self.rows: StepRows | None = None
        """The groups, with their texts."""
        self._segments: Segments | None = None
        self._watch = LookaheadWatch(config.build_segmenter())

    def read(self, rows: StepRows, index: Index | None = None) -> Seen:
        """Segments, and what else is to be seen; an error names rows by ``index``, their numbers in the batch."""
        self.rows = rows = rows.read(self.table)
        levels = self.config.build_levels(rows.rollouts)
        self._segments = levels[-1]
        check_partition(self._segments, rows.rollouts.response_mask, index)
        manner = Manner.of(rows.rollouts.texts or [], rows.prompt_tails)
        return Seen(levels, manner, rows.rollouts.outcomes, rows.tokens, self._watch(rows.rollouts))

    def plan(self, manner: Manner, lowest: Float[Tensor, " B"]) -> ProbePlan:
        """The probes, with what was seen in all parts."""
        assert self.rows is not None and self._segments is not None
        self.encoder.learn(manner)
        return place_probes(self.rows, self._segments, self.config, self.encoder, lowest)

    def hear(
        self,
        log_probs: Float[Tensor, "B T"] | None,
        entropies: Float[Tensor, "B T"] | None,
        sum_pi_squared: Float[Tensor, "B T"] | None = None,
    ) -> bool:
        """Take the actor's signals for those of the rollout engine; whether there are log-probs."""
        assert self.rows is not None
        rollouts = dataclasses.replace(self.rows.rollouts, log_probs=log_probs, entropies=entropies)
        rollouts = dataclasses.replace(rollouts, sum_pi_squared=sum_pi_squared)
        self.rows = dataclasses.replace(self.rows, rollouts=rollouts)
        return log_probs is not None

    def features(self, *states: Any) -> Float[Tensor, "B S F"]:
        """``boundary_features``; ``states`` are its arguments behind the segments."""
        assert self.rows is not None and self._segments is not None
        return boundary_features(self.rows.rollouts, self._segments, *states)

    def state_weight(self) -> Float[Tensor, "B S"]:
        """``gradient_norm_proxy`` of every segment."""
        assert self.rows is not None and self._segments is not None
        return gradient_norm_proxy(self.rows.rollouts, self._segments)


def split_groups(group_ids: Sequence[Hashable], sizes: Sequence[int], parts: int) -> list[Index]:
    """Rows in at most ``parts`` parts of about the same size, whole groups each: the largest group goes to the least
    part.

    >>> split_groups(["a", "b", "a", "c"], [5, 4, 5, 3], 2)
    [[0, 2], [1, 3]]
    """
    groups: dict[Hashable, list[int]] = {}
    for row, group in enumerate(group_ids):
        groups.setdefault(group, []).append(row)
    found: list[list[int]] = [[] for _ in range(min(parts, len(groups)))]
    filled = [0] * len(found)
    for members in sorted(groups.values(), key=lambda rows: -sum(sizes[row] for row in rows)):
        least = filled.index(min(filled))
        found[least] += members
        filled[least] += sum(sizes[row] for row in members)
    return [sorted(rows) for rows in found]


def plan_in_parts(whole: Part, indices: Sequence[Index], ask: Ask) -> tuple[Seen, ProbePlan]:
    """What is to be seen of the batch, and its probes."""
    seen = merge_seen(ask("read", [(whole.take(index), index) for index in indices]), indices)
    lowest = lowest_of_others(seen.outcomes)
    plans = ask("plan", [(seen.manner, lowest[index]) for index in indices])
    return seen, merge_plans(plans, indices, seen.levels[-1])


def features_in_parts(
    indices: Sequence[Index],
    ask: Ask,
    rollouts: Rollouts,
    segments: Segments,
    unit_values: Float[Tensor, "B S"],
    stats: GroupStats,
    *by_row: Tensor,
) -> Float[Tensor, "B S F"]:
    """``boundary_features`` of the batch that was planned last."""
    parts = []
    for index in indices:
        states = max(1, int(segments.num_segments[index].max()))
        parts.append((unit_values[index, :states], take_stats(stats, index), *(x[index] for x in by_row)))
    return merge_states(ask("features", parts), indices, unit_values.shape[1])


def state_weight_in_parts(
    indices: Sequence[Index], ask: Ask, rollouts: Rollouts, segments: Segments
) -> Float[Tensor, "B S"]:
    """``gradient_norm_proxy`` of the batch that was planned last."""
    return merge_states(ask("state_weight", [()] * len(indices)), indices, segments.max_segments, FLOOR)


def take_stats(stats: GroupStats, index: Index) -> GroupStats:
    """The statistics of some rows; ``index`` keeps the numbers that groups have in the batch."""
    return GroupStats(**{f.name: getattr(stats, f.name)[index] for f in dataclasses.fields(stats)})


def merge_seen(parts: Sequence[Seen], indices: Sequence[Index]) -> Seen:
    """What is to be seen of the batch."""
    levels = [merge_segments(level, indices) for level in zip(*(part.levels for part in parts), strict=True)]
    manner: Manner = reduce(add, [part.manner for part in parts])
    outcomes = torch.zeros(sum(map(len, indices)))
    for part, index in zip(parts, indices, strict=True):
        outcomes[index] = part.outcomes
    lookahead = next((part.lookahead for part in parts if part.lookahead), None)
    return Seen(levels, manner, outcomes, sum(part.tokens for part in parts), lookahead)


def merge_segments(parts: Sequence[Segments], indices: Sequence[Index]) -> Segments:
    """Segments of the batch."""
    rows, width = sum(map(len, indices)), max(part.segment_ids.shape[1] for part in parts)
    ids = torch.full((rows, width), MASKED, dtype=torch.int64)
    counts = torch.zeros(rows, dtype=torch.int64)
    for part, index in zip(parts, indices, strict=True):
        ids[index, : part.segment_ids.shape[1]] = part.segment_ids
        counts[index] = part.num_segments
    return Segments(ids, counts)


def merge_states(parts: Sequence[Tensor], indices: Sequence[Index], width: int, padding: float = 0) -> Tensor:
    """(B, ``width``, …) of the batch from that of its parts, which may be narrower."""
    rows = sum(map(len, indices))
    merged = parts[0].new_full((rows, width, *parts[0].shape[2:]), padding)
    for part, index in zip(parts, indices, strict=True):
        merged[index, : part.shape[1]] = part
    return merged


def merge_plans(parts: Sequence[ProbePlan], indices: Sequence[Index], segments: Segments) -> ProbePlan:
    """The probes of the batch."""
    if len(parts) == 1:
        return dataclasses.replace(parts[0], segments=segments)
    places = _merge_lists([part.places for part in parts], indices)
    delivered = all(not part.packed for part in parts)
    packed = [] if delivered else _merge_lists([part.packed for part in parts], indices)
    proposals, offered = {}, {}
    for kind in parts[0].proposals:
        proposals[kind] = _merge_proposals([part.proposals[kind] for part in parts], indices)
        width = proposals[kind].valid.shape[1]
        offered[kind] = merge_states([part.offered[kind] for part in parts], indices, width)
    return ProbePlan(packed, places, proposals, offered, segments, sum(part.tokens for part in parts))


def _merge_proposals(parts: Sequence[Proposals], indices: Sequence[Index]) -> Proposals:
    width = max(part.valid.shape[1] for part in parts)
    log_q = [part.log_q for part in parts if part.log_q is not None]
    solutions = [part.solutions for part in parts if part.solutions is not None]
    return Proposals(
        _merge_lists([part.answers for part in parts], indices),
        merge_states([part.utility for part in parts], indices, width),
        merge_states([part.valid for part in parts], indices, width),
        _merge_lists([part.source for part in parts], indices),
        _merge_lists(solutions, indices) if solutions else None,
        merge_states(log_q, indices, width) if log_q else None,
    )


def _merge_lists(parts: Sequence[Sequence[Any]], indices: Sequence[Index]) -> list[Any]:
    found = {
        row: entry
        for part, index in zip(parts, indices, strict=True)
        for row, entry in zip(index, part, strict=True)
    }
    return [found[row] for row in range(len(found))]
