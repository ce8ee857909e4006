"""How probes travel through TransferQueue: one whole-number vector a row there, one float vector back.

There (field ``rredcot_probes``): ``[n, boundary_1, skip_1, length_1, ..., ids of probe 1, ids of probe 2, ...]``,
boundaries counted from the start of the prompt. Back (field ``rredcot_probe_log_probs``): ``[seconds,
log_prob_1, ..., log_prob_n]``, where seconds is the row's share of what the probes of its micro-batch took.
No row is ever empty, which TransferQueue and jagged tensors handle least well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rredcot_plugin.probes.layout import ProbeSpec

PROBES = "rredcot_probes"
LOG_PROBS = "rredcot_probe_log_probs"
BACKEND = "rredcot_probe_backend"


def pack(specs: Sequence[ProbeSpec]) -> torch.Tensor:
    """Encode the probes of one row.

    >>> unpack(pack([(5, [7, 8], 1), (9, [3], 0)]))
    [(5, [7, 8], 1), (9, [3], 0)]
    """
    head = [number for boundary, ids, skip in specs for number in (boundary, skip, len(ids))]
    body = [token for _, ids, _ in specs for token in ids]
    return torch.tensor([len(specs), *head, *body], dtype=torch.int64)


def unpack(vector: torch.Tensor) -> list[ProbeSpec]:
    """Decode what ``pack`` encoded."""
    numbers = vector.tolist()
    count, at = numbers[0], 1 + 3 * numbers[0]
    specs: list[ProbeSpec] = []
    for i in range(count):
        boundary, skip, length = numbers[1 + 3 * i : 4 + 3 * i]
        specs.append((boundary, numbers[at : at + length], skip))
        at += length
    return specs


def jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
