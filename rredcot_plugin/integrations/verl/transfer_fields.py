"""How probes travel through TransferQueue: one whole-number vector a row there, one float vector back.

There (field ``rredcot_probes``): what ``probes.layout.pack`` makes of the row's probes, boundaries counted from the start
of the prompt. Back (field ``rredcot_probe_log_probs``): ``[seconds,
log_prob_1, ..., log_prob_n]``, where seconds is the row's share of what the probes of its micro-batch took.
No row is ever empty, which TransferQueue and jagged tensors handle least well.

Attribution travels beside them, with probes or without. There: the non-tensor key ``rredcot_attribution``
("attention", "gradient" or both with a comma), and the field ``rredcot_answer_start``, one whole number a row:
where the answer begins, counted from the start of the prompt, -1 for none. Back: the fields
``rredcot_attention`` and ``rredcot_gradient``, one float a token of the *response* (masked ones included), in
its order; 0 from the answer on and in rows without one, NaN throughout where the model cannot be read.

Σ_v π_v² is asked for by the non-tensor key ``rredcot_squares`` (true) and comes back as the field
``rredcot_sum_pi_squared``, one float per token of the response in its order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

PROBES = "rredcot_probes"
LOG_PROBS = "rredcot_probe_log_probs"
BACKEND = "rredcot_probe_backend"
ATTRIBUTION = "rredcot_attribution"
ANSWER_START = "rredcot_answer_start"
SQUARES = "rredcot_squares"
SUM_PI_SQUARED = "rredcot_sum_pi_squared"
SCORES = {"attention": "rredcot_attention", "gradient": "rredcot_gradient"}
"""Kind of attribution -> the field that its token scores come back in."""


def attributions(wanted: str | None) -> list[str]:
    """The kinds that ``rredcot_attribution`` names.

    >>> attributions("attention, gradient"), attributions(None)
    (['attention', 'gradient'], [])

    Raises:
        ValueError: an unknown kind.
    """
    kinds = [kind.strip() for kind in (wanted or "").split(",") if kind.strip()]
    for kind in kinds:
        if kind not in SCORES:
            raise ValueError(f"{ATTRIBUTION}={wanted!r}: expected {' or '.join(SCORES)}, or both with a comma")
    return kinds


def pack_starts(starts: Sequence[int]) -> torch.Tensor:
    """The field ``rredcot_answer_start``: jagged rows of one number."""
    return jagged([torch.tensor([start], dtype=torch.int64) for start in starts])


def unpack_starts(field: torch.Tensor, lengths: Sequence[int]) -> list[int]:
    """Answer starts of rows of these lengths (prompt and response), -1 as the length: no answer.

    >>> unpack_starts(pack_starts([3, -1]), [5, 4])
    [3, 4]
    """
    starts = [int(row) for row in field.unbind()]
    return [length if start < 0 else start for start, length in zip(starts, lengths, strict=True)]


def jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
