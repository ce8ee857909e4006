"""From the cuts that a segmenter proposes to a partition that keeps every rule: shared by all segmenters.

A segmenter proposes cuts ("a segment may begin at this token"); this module enforces the rest: never inside a
multi-byte character, a least segment length, a greatest number of segments, and the final answer left whole. Every rule
is kept on the way, so that a partition of stopping times comes from cuts that are stopping times: which segment a
token belongs to, and where that begins, is a function of the tokens before it alone (docs/reference/math.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.segmenters.answer_cuts import find_answers
from rredcot_plugin.segmenters.limits import Limits
from rredcot_plugin.segmenters.text_rules import distinct
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.text.answers import MARKERS
from rredcot_plugin.types import MASKED, Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

Proposer = Callable[[Trace], "NDArray[np.int64]"]
"""Trace -> token indices at which a segment may begin, in any order; those that no segment may begin at are dropped."""


def segment(
    rollouts: Rollouts, propose: Proposer, limits: Limits | None = None, answer_markers: Sequence[str] = MARKERS
) -> Segments:
    """Apply ``propose`` to every trace and build the partition.

    No cut is placed inside an answer, which ``answer_markers`` find; one is placed where it begins.
    """
    kept = limits or Limits()

    def decide(trace: Trace) -> NDArray[np.int64]:
        answers = find_answers(trace, answer_markers)
        proposed = _indices(propose(trace))
        cuts = answers.outside(legal(trace, proposed))
        return legal(trace, kept.admit(cuts, answers.openings))

    return build_segments(rollouts, decide)


def _indices(proposed: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a segmenter proposed, as integers.

    Raises:
        ValueError: it is not a flat array of integers. A mask of the tokens would be taken for the indices 0 and 1.
    """
    if not isinstance(proposed, np.ndarray):
        got = type(proposed).__name__
    elif proposed.ndim == 1 and (len(proposed) == 0 or proposed.dtype.kind in "iu"):
        return proposed.astype(np.int64, copy=False)
    else:
        mask = "; np.flatnonzero makes indices of a mask" if proposed.dtype.kind == "b" else ""
        got = f"{proposed.dtype} of shape {proposed.shape}{mask}"
    raise ValueError(
        f"propose: expected an array of the token indices at which a segment may begin, integers of shape (n,), got {got}"
    )


def legal(trace: Trace, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the cuts at which a segment may begin, sorted and distinct."""
    cuts = distinct(cuts[(cuts > 0) & (cuts < trace.length)])
    return cuts[trace.may_begin(cuts)]


def build_segments(rollouts: Rollouts, decide: Proposer) -> Segments:
    """The partition with a segment beginning at each of ``decide(trace)``: sorted token indices from 1 to n − 1."""
    mask = rollouts.response_mask.cpu().numpy()
    signals = [None if s is None else s.float().cpu().numpy() for s in (rollouts.entropies, rollouts.log_probs)]
    ids = np.full(mask.shape, MASKED, dtype=np.int64)
    counts = np.zeros(len(mask), dtype=np.int64)
    for row in range(len(mask)):
        columns = np.flatnonzero(mask[row])
        if len(columns) == 0:
            continue
        cuts = decide(Trace.of_row(rollouts, row, columns, *signals))
        lengths = np.diff(cuts, prepend=0, append=len(columns))
        ids[row, columns] = np.repeat(np.arange(len(lengths)), lengths)
        counts[row] = len(cuts) + 1
    device = rollouts.response_mask.device
    return Segments(torch.from_numpy(ids).to(device), torch.from_numpy(counts).to(device))
