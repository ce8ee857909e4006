"""Which probe tokens are fed, where they stand and what they may see, for one micro-batch of rows.

A probe stands after the first `boundary` tokens of its row (the trunk): it continues their position ids,
sees them and its own earlier tokens, and nothing else. Its last token is only predicted, never fed. A probe
without a bridge re-feeds the trunk token before its boundary, so that every counted token is predicted by a
fed row and nothing is ever needed from the trunk's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

ProbeSpec = tuple[int, Sequence[int], int]
"""(boundary, token ids, number of leading ids that are not counted: the bridge)."""


def pack(specs: Sequence[ProbeSpec]) -> Tensor:
    """The probes of one row as integers: ``[n, boundary_1, skip_1, length_1, ..., ids of probe 1, ids of probe 2,
    ...]``, int64.

    >>> unpack(pack([(5, [7, 8], 1), (9, [3], 0)]))
    [(5, [7, 8], 1), (9, [3], 0)]
    """
    head = [number for boundary, ids, skip in specs for number in (boundary, skip, len(ids))]
    body = [token for _, ids, _ in specs for token in ids]
    return torch.tensor([len(specs), *head, *body], dtype=torch.int64)


def unpack(vector: Tensor) -> list[ProbeSpec]:
    """Decode what ``pack`` encoded."""
    numbers = vector.tolist()
    count, at = numbers[0], 1 + 3 * numbers[0]
    specs: list[ProbeSpec] = []
    for i in range(count):
        boundary, skip, length = numbers[1 + 3 * i : 4 + 3 * i]
        specs.append((boundary, numbers[at : at + length], skip))
        at += length
    return specs


def split_packs(vectors: Tensor) -> list[Tensor]:
    """The packs that were put one after another.

    >>> [unpack(pack) for pack in split_packs(torch.cat([pack([(5, [7, 8], 1)]), pack([]), pack([(9, [3], 0)])]))]
    [[(5, [7, 8], 1)], [], [(9, [3], 0)]]
    """
    packs = []
    while len(vectors):
        count = int(vectors[0])
        size = 1 + 3 * count + int(vectors[3 : 1 + 3 * count : 3].sum())
        packs.append(vectors[:size])
        vectors = vectors[size:]
    return packs


def packed_tokens(vector: Tensor) -> int:
    """Token ids of all probes of a row."""
    return vector.numel() - 1 - 3 * int(vector[0])


@dataclass(frozen=True)
class ProbeLayout:
    """n probes with P fed tokens in all, sorted by (row, limit); every tensor is int64.

    Shapes: `ids`, `position_ids`, `target_ids` (P,); the others (n,). `target_ids[i]` is the token that fed
    row i predicts. `limit` is how many trunk tokens of its `row` a probe sees, `length` its number of fed
    tokens, `skip` the number of its leading fed rows whose prediction is not counted, `order` its index in
    the caller's order.
    """

    ids: Tensor
    position_ids: Tensor
    target_ids: Tensor
    row: Tensor
    limit: Tensor
    length: Tensor
    skip: Tensor
    order: Tensor

    @property
    def num_probes(self) -> int:
        return self.row.numel()

    @property
    def num_tokens(self) -> int:
        return self.ids.numel()

    def probe_index(self) -> Tensor:
        """(P,): the probe that each fed token belongs to."""
        return torch.repeat_interleave(torch.arange(self.num_probes, device=self.row.device), self.length)

    def token_offset(self) -> Tensor:
        """(P,): the place of each fed token in its probe, from 0."""
        first = self.length.cumsum(0) - self.length
        return torch.arange(self.num_tokens, device=self.row.device) - first[self.probe_index()]


def build_layout(rows: Sequence[Sequence[ProbeSpec]], row_tokens: Sequence[Sequence[int]]) -> ProbeLayout:
    """Lay out the probes of every row after their boundaries.

    Args:
        rows: per row its probes (boundary, ids, skip); boundary counts tokens of that row, prompt included.
        row_tokens: per row its token ids (prompt and response, no padding).

    Results that follow this layout come in the caller's order: the probes of row 0, then of row 1, and so on.

    Raises:
        ValueError: boundary outside [0, tokens of the row], skip outside [0, number of ids), boundary 0
            without a bridge (no token could predict the first counted one), or rows and row_tokens of
            different lengths.
    """
    if len(rows) != len(row_tokens):
        raise ValueError(f"row_tokens has {len(row_tokens)} rows, probes are given for {len(rows)}; must be equal")
    placed = [(row, *spec) for row, specs in enumerate(rows) for spec in specs]
    for row, boundary, ids, skip in placed:
        check_probe(boundary, ids, skip, len(row_tokens[row]))
    order = sorted(range(len(placed)), key=lambda i: (placed[i][0], placed[i][1] - (placed[i][3] == 0)))
    chains, limits, skips = [], [], []
    for row, boundary, ids, skip in (placed[i] for i in order):
        refed = [int(row_tokens[row][boundary - 1])] if skip == 0 else []
        chains.append([*refed, *ids])
        limits.append(boundary - len(refed))
        skips.append(max(skip - 1, 0))
    return _from_chains(chains, [placed[i][0] for i in order], limits, skips, order)


def filler_layout() -> ProbeLayout:
    """One fed token that sees no trunk: what a rank without probes runs to stay in step with the others."""
    return _from_chains([[0, 0]], [0], [0], [0], [0])


def check_probe(boundary: int, ids: Sequence[int], skip: int, num_tokens: int) -> None:
    """Raise ValueError unless the probe can stand in a row of `num_tokens` tokens (see `build_layout`)."""
    if not 0 <= boundary <= num_tokens:
        raise ValueError(f"boundary is {boundary}; expected 0 to {num_tokens}, the number of tokens of its row")
    if not 0 <= skip < len(ids):
        raise ValueError(
            f"skip is {skip}; expected 0 to {len(ids) - 1}, at least one of {len(ids)} ids must count"
        )
    if boundary == 0 and skip == 0:
        raise ValueError(
            "boundary is 0 and skip is 0: nothing predicts the first token; expected a bridge of at "
            "least one token, or boundaries from 1"
        )


def _from_chains(
    chains: list[list[int]], rows: list[int], limits: list[int], skips: list[int], order: list[int]
) -> ProbeLayout:
    fed = [chain[:-1] for chain in chains]
    length = torch.tensor([len(tokens) for tokens in fed], dtype=torch.int64)
    limit = torch.tensor(limits, dtype=torch.int64)
    total = int(length.sum())
    start = torch.repeat_interleave(length.cumsum(0) - length, length)
    return ProbeLayout(
        ids=_flat(fed),
        position_ids=torch.repeat_interleave(limit, length) + torch.arange(total) - start,
        target_ids=_flat([chain[1:] for chain in chains]),
        row=torch.tensor(rows, dtype=torch.int64),
        limit=limit,
        length=length,
        skip=torch.tensor(skips, dtype=torch.int64),
        order=torch.tensor(order, dtype=torch.int64),
    )


def _flat(lists: list[list[int]]) -> Tensor:
    return torch.tensor([token for tokens in lists for token in tokens], dtype=torch.int64)


def row_spans_of(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Spans (batch index 0, start, end) of rows of these lengths packed one after the other in one sequence.

    >>> row_spans_of([3, 2])
    [(0, 0, 3), (0, 3, 5)]
    """
    ends = list(accumulate(lengths))
    return [(0, end - length, end) for length, end in zip(lengths, ends, strict=True)]
