"""Any causal language model of transformers: its log-probs and entropies on given tokens, and its probes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rredcot_plugin.probes import (
    UnsupportedModelError,
    attention_attribution,
    build_layout,
    capture_trunk,
    forward_batched,
    forward_packed,
    forward_probes,
    gradient_attribution,
)
from rredcot_plugin.probes.capture import CapturedTrunk, RowSpan
from rredcot_plugin.probes.layout import ProbeSpec
from rredcot_plugin.probes.log_probs import pick_rows

logger = logging.getLogger(__name__)

LOGIT_ROWS = 256
"""Rows of logits of traces that exist at once: (256, V) and a few float32 copies of that."""

PROBE_TOKENS = 2048
"""The same for probes, in the model's dtype."""


@dataclass(frozen=True)
class KeptTrunk:
    """Keys and values of one forward of some rows; worth nothing once the model's weights have changed."""

    captured: CapturedTrunk
    places: dict[tuple[int, ...], int]

    def spans(self, rows: Sequence[Sequence[int]]) -> list[RowSpan] | None:
        """Where these rows stand; None where one was not among them."""
        if not all(tuple(row) in self.places for row in rows):
            return None
        return [(self.places[tuple(row)], 0, len(row)) for row in rows]


class Scorer:
    """Asks one model. ``max_tokens``: padded tokens of one forward; ``temperature`` divides the logits."""

    def __init__(
        self, model: nn.Module, backend: str = "auto", temperature: float = 1.0, max_tokens: int = 16384
    ) -> None:
        self.model = model
        self.backend = "cached" if backend == "auto" else backend
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.device = next(model.parameters()).device

    @torch.no_grad()
    def signals(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Per row log-probs and entropies (len(row) − start,) of its tokens from ``start`` (≥ 1) on, in nats."""
        found: list[Any] = [None] * len(rows)
        for batch in self._batches(rows):
            found_here = self._signals([rows[i] for i in batch], [starts[i] for i in batch])
            for i, signal in zip(batch, found_here, strict=True):
                found[i] = signal
        return found

    @torch.no_grad()
    def signals_and_trunk(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> tuple[list[tuple[Tensor, Tensor]], KeptTrunk | None]:
        """``signals``, and what ``probes`` may read instead of a forward of their own, as inside verl.

        Memory: keys and values of all tokens. None in its place where the backend is not ``cached``, the model
        cannot be forked, or the rows do not fit into one forward.
        """
        batches = list(self._batches(rows))
        if self.backend != "cached" or len(batches) != 1:
            return self.signals(rows, starts), None
        try:
            with capture_trunk(self.model) as captured:
                found = self._signals(rows, starts)
            captured.check_complete()
        except UnsupportedModelError:
            return self.signals(rows, starts), None
        return found, KeptTrunk(captured, {tuple(row): i for i, row in enumerate(rows)})

    @torch.no_grad()
    def probes(
        self,
        rows: Sequence[Sequence[int]],
        specs: Sequence[Sequence[ProbeSpec]],
        trunk: KeptTrunk | None = None,
    ) -> list[list[float]]:
        """Summed log-probs of the counted tokens of every probe, per row in the order of ``specs``; after a ``trunk``
        of the same rows and weights, where there is one."""
        found: list[list[float]] = [[] for _ in rows]
        asked = [i for i, row in enumerate(specs) if row]
        for batch in self._batches([rows[i] for i in asked]):
            at = [asked[i] for i in batch]
            flat = iter(self._probes([list(rows[i]) for i in at], [specs[i] for i in at], trunk).tolist())
            for i in at:
                found[i] = [next(flat) for _ in specs[i]]
        return found

    def attribution(self, kind: str, row: Sequence[int], answer_start: int) -> Tensor:
        """``attention`` or ``gradient`` score of each token of a row, (len(row),); NaN where it cannot be read."""
        tokens = torch.tensor(row, device=self.device)
        try:
            if kind == "attention":
                return attention_attribution(self.model, [tokens], [answer_start])[0].cpu()
            return gradient_attribution(self.model, [tokens], [answer_start], self.temperature)[0].detach().cpu()
        except UnsupportedModelError:
            return torch.full((len(row),), torch.nan)

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Indices of rows of similar length, at most ``max_tokens`` padded tokens together (at least one row)."""
        batch: list[int] = []
        for index in sorted(range(len(rows)), key=lambda i: len(rows[i])):
            full = len(batch) == LOGIT_ROWS or (len(batch) + 1) * len(rows[index]) > self.max_tokens
            if batch and full:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _signals(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        inputs, first = self._padded(rows), min(starts)
        width = inputs["input_ids"].shape[1]
        log_probs = torch.zeros(len(rows), width, device=self.device)
        entropies = torch.zeros_like(log_probs)
        step = max(1, LOGIT_ROWS // len(rows))
        with frozen_trunk(self.model, inputs):
            for start in range(first, width, step):
                columns = torch.arange(start, min(width, start + step), device=self.device)
                output = self.model(**inputs, use_cache=False, logits_to_keep=columns - 1)
                logits = pick_rows(output.logits, columns - 1, width).float() / self.temperature
                normed = torch.log_softmax(logits, dim=-1)
                targets = inputs["input_ids"][:, columns, None]
                log_probs[:, columns] = normed.gather(-1, targets)[..., 0]
                entropies[:, columns] = -(normed.exp() * normed).nan_to_num(0.0).sum(dim=-1)
        ends = [(i, start, len(row)) for i, (row, start) in enumerate(zip(rows, starts, strict=True))]
        return [(log_probs[i, s:e].cpu(), entropies[i, s:e].cpu()) for i, s, e in ends]

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Rows padded on the right: causal attention keeps the padding out of what counts."""
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        real = torch.arange(width)[None, :] < torch.tensor([len(row) for row in rows])[:, None]
        positions = torch.arange(width).expand(len(rows), width)
        inputs = {"input_ids": ids, "attention_mask": real.long(), "position_ids": positions}
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def _probes(self, rows: list[list[int]], specs: list[Sequence[ProbeSpec]], trunk: KeptTrunk | None) -> Tensor:
        if self.backend != "batched":
            try:
                return self._forked(rows, specs, trunk)
            except UnsupportedModelError as error:
                logger.warning("rredcot: %s From here on every probe is a row of its own (slower).", error)
                self.backend = "batched"
        return forward_batched(
            self.model, specs, rows, self.temperature, device=self.device, max_tokens=self.max_tokens
        )

    def _forked(self, rows: list[list[int]], specs: list[Sequence[ProbeSpec]], trunk: KeptTrunk | None) -> Tensor:
        layouts = [build_layout(piece, rows) for piece in in_pieces(specs, PROBE_TOKENS)]
        if self.backend == "packed":
            tensors = [torch.tensor(row, device=self.device) for row in rows]
            nothing = torch.empty(0, dtype=torch.int64, device=self.device)
            return torch.cat(
                [forward_packed(self.model, tensors, x, self.temperature, trunk_rows=nothing)[1] for x in layouts]
            )
        captured, spans = self._trunk(rows, trunk)
        return torch.cat([forward_probes(self.model, captured, x, spans, self.temperature) for x in layouts])

    def _trunk(self, rows: list[list[int]], kept: KeptTrunk | None) -> tuple[CapturedTrunk, list[RowSpan]]:
        """Keys and values of the rows, and where they stand in them."""
        spans = kept.spans(rows) if kept is not None else None
        if kept is not None and spans is not None:
            return kept.captured, spans
        with capture_trunk(self.model) as captured:
            self.model(**self._padded(rows), use_cache=False, logits_to_keep=1)
        return captured, [(i, 0, len(row)) for i, row in enumerate(rows)]


def in_pieces(specs: Sequence[Sequence[ProbeSpec]], most_tokens: int) -> Iterator[list[list[ProbeSpec]]]:
    """The probes of all rows in pieces of at most ``most_tokens`` tokens (at least one probe), order kept.

    >>> probe = (1, [5, 6], 0)
    >>> list(in_pieces([[probe, probe], [probe]], 4))
    [[[(1, [5, 6], 0), (1, [5, 6], 0)], []], [[], [(1, [5, 6], 0)]]]
    """
    piece: list[list[ProbeSpec]] = [[] for _ in specs]
    tokens = 0
    for row, probes in enumerate(specs):
        for probe in probes:
            if tokens and tokens + len(probe[1]) > most_tokens:
                yield piece
                piece, tokens = [[] for _ in specs], 0
            piece[row].append(probe)
            tokens += len(probe[1])
    yield piece


@contextmanager
def frozen_trunk(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[None]:
    """While this is open, calls of ``model`` on ``inputs`` reuse one forward of its layers and run the head only.

    So logits can be had in pieces, (rows, V) at a time, with all that the model does after its head (soft-capping,
    scaling). A model whose layers are not modules of their own runs as a whole each time.
    """
    trunk = getattr(model, str(getattr(model, "base_model_prefix", "") or "_"), None)
    if not isinstance(trunk, nn.Module) or trunk is model:
        yield
        return
    kept: list[Any] = []
    handle = trunk.register_forward_hook(lambda module, arguments, output: kept.append(output))
    try:
        model(**inputs, use_cache=False, logits_to_keep=1)
    finally:
        handle.remove()
    if len(kept) != 1:
        yield
        return
    original = trunk.__dict__.get("forward")
    trunk.forward = lambda *arguments, **options: kept[0]
    try:
        yield
    finally:
        del trunk.forward
        if original is not None:
            trunk.forward = original
