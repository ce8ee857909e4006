"""Backend `batched`: every probe is a row [prefix, probe] of a plain forward; slow, right with any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rredcot_plugin.probes.attention_hook import rotates_by_length
from rredcot_plugin.probes.layout import ProbeSpec, check_probe
from rredcot_plugin.probes.log_probs import pick_rows, selected_log_probs

MAX_TOKENS = 16384
"""Padded tokens of one forward."""


@torch.no_grad()
def forward_batched(
    model: nn.Module,
    rows: Sequence[Sequence[ProbeSpec]],
    row_tokens: Sequence[Sequence[int]],
    temperature: float = 1.0,
    *,
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> Tensor:
    """Sum of the counted log-probs of every probe, (n,) float32; arguments and order as in `build_layout`.

    Rows are padded on the right, in chunks of at most `max_tokens` padded tokens (at least one row), or one by one where a
    longer row beside it would change a row's rotary angles.
    """
    sequences = as_rows(rows, row_tokens)
    max_tokens = 1 if rotates_by_length(model) else max_tokens
    out = torch.empty(len(sequences), dtype=torch.float32, device=device)
    for chunk in chunks([len(tokens) for tokens, _ in sequences], max_tokens):
        out[chunk] = _chunk_log_probs(model, [sequences[i] for i in chunk], temperature, device)
    return out


def as_rows(
    rows: Sequence[Sequence[ProbeSpec]], row_tokens: Sequence[Sequence[int]]
) -> list[tuple[list[int], int]]:
    """Every probe as the tokens [prefix, probe] and the place of the first of them that counts.

    >>> as_rows([[(2, [7, 8], 1)]], [[4, 5, 6]])
    [([4, 5, 7, 8], 3)]
    """
    found = []
    for specs, tokens in zip(rows, row_tokens, strict=True):
        for boundary, ids, skip in specs:
            check_probe(boundary, ids, skip, len(tokens))
            found.append(([*tokens[:boundary], *ids], boundary + skip))
    return found


def padded(sequences: list[tuple[list[int], int]], device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids (n, L), padded on the right with 0; which are real; which count."""
    longest = max(len(tokens) for tokens, _ in sequences)
    ids = torch.zeros((len(sequences), longest), dtype=torch.int64)
    real, counted = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for i, (tokens, first) in enumerate(sequences):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        real[i, : len(tokens)] = True
        counted[i, first : len(tokens)] = True
    return ids.to(device), real.to(device), counted.to(device)


def chunks(lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in chunks of similar length, each of at most `max_tokens` padded tokens, or of one row."""
    chunk: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if chunk and (len(chunk) + 1) * lengths[index] > max_tokens:
            yield chunk
            chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def _chunk_log_probs(
    model: nn.Module, sequences: list[tuple[list[int], int]], temperature: float, device: torch.device | str
) -> Tensor:
    ids, real, counted = padded(sequences, device)
    longest = ids.shape[1]
    predicts = counted.roll(-1, dims=1)  # row t predicts token t + 1; the first token is never counted
    keep = torch.nonzero(predicts.any(dim=0))[:, 0]
    position_ids = torch.arange(longest, device=ids.device).expand_as(ids)
    output = model(
        input_ids=ids,
        attention_mask=real.long(),
        position_ids=position_ids,
        use_cache=False,
        logits_to_keep=keep,
    )
    logits = pick_rows(output.logits, keep, longest)
    out = torch.zeros(counted.shape, dtype=torch.float32, device=ids.device)
    out[counted] = selected_log_probs(logits[predicts[:, keep]], ids[counted], temperature)
    return out.sum(dim=1)
