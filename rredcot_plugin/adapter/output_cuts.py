"""Segments of rows whose sessions have several outputs: none reaches from one output into the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.choices import is_grpo
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.types import MASKED, Segments, by_rows


def build_levels(rows: PromptedRollouts, config: RRedCoTConfig) -> list[Segments]:
    """The configured segments of every level, coarse to fine, each cut where an output begins.

    Where an output ends is known before the next one is sampled, so boundaries stay stopping times. GRPO, which
    ``segmenter: none`` is, hands one number to all outputs of a session, and is left as it is.
    """
    levels = config.build_levels(rows.rollouts)
    if rows.outputs is None or is_grpo(config):
        return levels
    return [cut_at_outputs(level, rows.outputs) for level in levels]


def cut_at_outputs(segments: Segments, outputs: Sequence[Sequence[Output]]) -> Segments:
    """The segments with one more boundary at the first unmasked token of every output that has none there.

    These boundaries come on top of ``max_segments``. Ids keep their order, so that fine segments remain parts of coarse
    ones if both are cut.
    """
    ids = segments.segment_ids
    first_columns = torch.zeros_like(ids)
    for row, own in enumerate(outputs):
        first_columns[row, [output.start for output in own[1:] if output.length]] = 1
    cut = by_rows(_cut, ids, first_columns)
    return Segments(cut, cut.amax(dim=1) + 1)


def _cut(ids: torch.Tensor, first_columns: torch.Tensor) -> torch.Tensor:
    """Ids (B, T) with one more segment from each first column of an output on."""
    output = first_columns.cumsum(dim=1)  # that a column belongs to
    begins = (ids > MASKED) & (_before(output, ids) < output) & (_before(ids, ids) == ids)
    return torch.where(ids > MASKED, ids + begins.cumsum(dim=1), MASKED)


def _before(ascending: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(B, T): the number, which never decreases along a row, of the unmasked token before each one; −1 for the first."""
    known = torch.where(ids > MASKED, ascending, -1).cummax(dim=1).values
    return torch.nn.functional.pad(known[:, :-1], (1, 0), value=-1)
