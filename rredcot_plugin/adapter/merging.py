"""Puts together what parts of a batch gave, to the last bit what the whole batch gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch

from rredcot_plugin.adapter.probe_plan import ProbePlan
from rredcot_plugin.adapter.summary import BatchSummary, Index
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.text.encoding import AnswerStyle
from rredcot_plugin.types import MASKED, Segments
from rredcot_plugin.values.prefix_numbers import PrefixNumbers
from rredcot_plugin.values.proposals import Proposals

if TYPE_CHECKING:
    from torch import Tensor


def merge_summaries(parts: Sequence[BatchSummary], indices: Sequence[Index]) -> BatchSummary:
    """The summary of the batch."""
    levels = [merge_segments(level, indices) for level in zip(*(part.levels for part in parts), strict=True)]
    style: AnswerStyle = reduce(add, [part.style for part in parts])
    outcomes = torch.zeros(sum(map(len, indices)))
    for part, index in zip(parts, indices, strict=True):
        outcomes[index] = part.outcomes
    lookahead = next((part.lookahead for part in parts if part.lookahead), None)
    width = levels[-1].segment_ids.shape[1]
    said = [
        torch.zeros(len(index), 0) if part.moved is None else part.moved
        for part, index in zip(parts, indices, strict=True)
    ]
    moved = merge_states(said, indices, width) if any(part.shape[1] for part in said) else None
    tokens, unread = sum(part.tokens for part in parts), sum(part.unread for part in parts)
    return BatchSummary(levels, style, outcomes, tokens, lookahead, moved, unread)


def merge_segments(parts: Sequence[Segments], indices: Sequence[Index]) -> Segments:
    """Segments of the batch."""
    rows, width = sum(map(len, indices)), max(part.segment_ids.shape[1] for part in parts)
    ids = torch.full((rows, width), MASKED, dtype=torch.int64)
    counts = torch.zeros(rows, dtype=torch.int64)
    for part, index in zip(parts, indices, strict=True):
        ids[index, : part.segment_ids.shape[1]] = part.segment_ids
        counts[index] = part.num_segments
    return Segments(ids, counts)


def merge_states(parts: Sequence[Tensor], indices: Sequence[Index], width: int) -> Tensor:
    """(B, ``width``, …) of the batch from that of its parts, which may be narrower; 0 in the padding."""
    rows = sum(map(len, indices))
    merged = parts[0].new_zeros(rows, width, *parts[0].shape[2:])
    for part, index in zip(parts, indices, strict=True):
        merged[index, : part.shape[1]] = part
    return merged


def merge_numbers(parts: Sequence[StateNumbers], indices: Sequence[Index]) -> StateNumbers:
    """The numbers of the batch's states, all of which every part has; no weights where a part has none."""
    prefixes = [part.prefixes for part in parts if part.prefixes is not None]
    width = max(part.tokens.shape[1] for part in prefixes)
    columns = zip(*(vars(part).values() for part in prefixes), strict=True)
    weights = [part.gradient_norm_proxy for part in parts if part.gradient_norm_proxy is not None]
    return StateNumbers(
        PrefixNumbers(*(merge_states(column, indices, width) for column in columns)),
        merge_states(weights, indices, width) if len(weights) == len(parts) else None,
    )


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
