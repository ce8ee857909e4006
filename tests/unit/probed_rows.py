"""Rows, probes and captured passes of a tiny model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rredcot_plugin.probes import (
    build_layout,
    capture_trunk,
    forward_probes,
)
from rredcot_plugin.probes.layout import ProbeSpec
from tests.unit.probe_models import WINDOW, random_ids

TRACE = random_ids(40, seed=1)


PROBES = [random_ids(length, seed=length) for length in (1, 2, 5)]


# three rows of different lengths, probes not sorted by boundary, boundaries at the start and at the very end
ROW_TOKENS = [random_ids(length, seed=length) for length in (23, 6, 31)]


ROW_PROBES: list[list[ProbeSpec]] = [
    [(23, random_ids(4, 50), 0), (1, random_ids(3, 51), 0), (0, random_ids(5, 52), 2)],
    [],
    [
        (30, random_ids(2, 53), 1),
        (WINDOW, random_ids(WINDOW + 4, 54), 3),
        (31, [9], 0),
        (12, random_ids(4, 55), 0),
    ],
]


def padded_trunk(side: str) -> tuple[dict[str, Tensor], list[tuple[int, int, int]]]:
    longest = max(len(tokens) for tokens in ROW_TOKENS) + 2
    ids, mask = torch.zeros((3, longest), dtype=torch.int64), torch.zeros((3, longest), dtype=torch.int64)
    spans = []
    for i, tokens in enumerate(ROW_TOKENS):
        start = 0 if side == "right" else longest - len(tokens)
        ids[i, start : start + len(tokens)] = torch.tensor(tokens)
        mask[i, start : start + len(tokens)] = 1
        spans.append((i, start, start + len(tokens)))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, spans


def captured_log_probs(
    model: nn.Module, inputs: dict[str, Tensor], spans: list[tuple[int, int, int]], **options: int
) -> tuple[Tensor, Tensor]:
    """(trunk logits, probe log-probs) in the way an engine gets them."""
    layout = build_layout(ROW_PROBES, ROW_TOKENS)
    with torch.no_grad(), capture_trunk(model) as captured:
        logits = model(**inputs, use_cache=False).logits
    return logits, forward_probes(model, captured, layout, spans, 0.7, **options)
