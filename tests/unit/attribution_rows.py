"""Rows of a tiny model for the tests of attribution."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.unit.probe_models import WINDOW, random_ids

# the answer is longer than the window, short, all of the row, absent, one token
ROWS = [torch.tensor(random_ids(length, seed=length)) for length in (30, 17, 6, 9, 12)]


STARTS = [30 - WINDOW - 5, 13, 0, 9, 11]


LENGTHS = [len(row) for row in ROWS]


def padded_inputs(side: str) -> tuple[dict[str, Tensor], list[tuple[int, int, int]]]:
    longest = max(LENGTHS) + 2
    ids, mask = torch.zeros((len(ROWS), longest), dtype=torch.int64), torch.zeros(len(ROWS), longest)
    spans = []
    for i, row in enumerate(ROWS):
        start = 0 if side == "right" else longest - len(row)
        ids[i, start : start + len(row)], mask[i, start : start + len(row)] = row, 1
        spans.append((i, start, start + len(row)))
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions}, spans
