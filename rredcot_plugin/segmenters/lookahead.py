"""Is every boundary of a segmenter a stopping time? A search for an example that says no.

With λ = 1 the policy gradient is exact if the baseline of a token is a function of the tokens before it, and of other
rollouts. The baseline depends on where the token's segment begins and how many came before, so both must be known before
the token is drawn (docs/reference/math.md). The search exchanges what follows a prefix for other endings, and compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.segmenters.characters import REPLACEMENT
from rredcot_plugin.segmenters.trace import spans_of
from rredcot_plugin.types import MASKED, Rollouts, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ROWS, PLACES, ENDINGS = 4, 8, 4
"""Rows that are looked at, places in each, and endings tried at each, unless told otherwise."""

WATCHED = 3
"""Batches of a run that are searched."""

SHOWN = 40
"""Characters of an ending in a message."""


INEXACT = (
    "rredcot: segmenter=%s places boundaries that depend on what comes after them, which biases the policy gradient: %s. Training "
    "goes on; rredcot_plugin.check_segmenter tests a segmenter, and docs/guides/extending.md says how to fix it"
)
"""A warning, once a run, with the segmenter's name and what ``find_lookahead`` found."""


@dataclass(frozen=True)
class Lookahead:
    """Two ways to go on from the same prefix, after which the token at ``token`` belongs to different segments.

    ``token`` counts the unmasked tokens of rollout ``row`` from 0. ``begins`` are the tokens at which its segment
    begins, ``numbers`` how many segments come before it, ``endings`` the texts (or token ids) that follow the prefix.
    """

    row: int
    token: int
    begins: tuple[int, int]
    numbers: tuple[int, int]
    endings: tuple[str, str]

    def __str__(self) -> str:
        places = [
            f"the segment of token {self.token} begins at token {begin} with {number} before it if the response "
            f"goes on with {ending!r}"
            for begin, number, ending in zip(self.begins, self.numbers, self.endings, strict=True)
        ]
        return f"rollout {self.row}: {places[0]}; {places[1]}"


def find_lookahead(
    segmenter: Callable[[Rollouts], Segments],
    rollouts: Rollouts,
    *,
    rows: int = ROWS,
    places: int = PLACES,
    endings: int = ENDINGS,
    seed: int = 0,
) -> Lookahead | None:
    """An example in which a boundary depends on what comes after it; None if none is found.

    Args:
        segmenter: anything that takes ``Rollouts`` and returns ``Segments``.
        rollouts: real ones; prefixes and endings are parts of them.
        rows: how many rollouts to look at, the ones with most segments first.
        places: tokens in each, half of them next to a boundary.
        endings: what is put in the place of each token and all after it: a single token, the rest of this or another
            rollout from a random token on, half of them from a boundary on.
        seed: of the random choices.
    """
    rng = np.random.default_rng(seed)
    cut = segmenter(rollouts)
    mask = rollouts.response_mask.cpu().numpy()
    columns = [np.flatnonzero(row) for row in mask]
    ids = [row[own] for row, own in zip(cut.segment_ids.cpu().numpy(), columns, strict=True)]
    order = np.argsort([-int(number) for number in cut.num_segments], kind="stable")
    full = [int(row) for row in order if len(columns[row]) > 1]
    for row in full[:rows]:
        prefix = _Prefix(rollouts, row, columns[row])
        for token in _places(ids[row], places, rng):
            tried: list[tuple[int, int, int | None]] = [(row, int(token), None)]
            for number in range(endings):
                other = full[int(rng.integers(len(full)))]
                begin = int(_places(ids[other], 1, rng, near_boundaries=number % 2 == 0)[0])
                tried.append((other, begin, begin + 1 if number == 0 else None))
            found = _differ(
                segmenter, prefix, token, [_Prefix(rollouts, r, columns[r]).rest(t, e) for r, t, e in tried]
            )
            if found is not None:
                return found
    return None


class LookaheadWatch:
    """Tells for each batch of a run why a segmenter's boundaries are not stopping times; None where no reason is known.

    Segmenters that ship with the package are tested once and for all, so a search runs for those of a user only, on the
    first ``WATCHED`` batches that have rollouts with several tokens.
    """

    def __init__(self, segmenter: Callable[[Rollouts], Segments]) -> None:
        self._segmenter = segmenter
        self._reason: str | None = None
        self._left = WATCHED if _is_foreign(segmenter) else 0
        if getattr(segmenter, "retrospective", False):
            self._reason = "it cuts a finished trace; use its namesake without _retrospective for training"

    def __call__(self, rollouts: Rollouts) -> str | None:
        if self._left and self._reason is None:
            self._left -= 1
            self._reason = self._search(rollouts)
        return self._reason

    def _search(self, rollouts: Rollouts) -> str | None:
        try:
            found = find_lookahead(self._segmenter, rollouts, seed=self._left)
        except Exception as error:  # noqa: BLE001  a user's code, on rollouts that it was not made for
            logger.warning("rredcot: whether %r looks ahead could not be checked: %r", self._segmenter, error)
            self._left = 0
            return None
        return None if found is None else str(found)


def _is_foreign(segmenter: object) -> bool:
    """Whether it, or a level of it, comes from outside the package."""
    members = getattr(segmenter, "members", ())
    return not type(segmenter).__module__.startswith("rredcot_plugin.") or any(map(_is_foreign, members))


@dataclass(frozen=True)
class _Rest:
    """Tokens of a rollout from one on: columns, text and signals, for another prefix."""

    fields: dict[str, torch.Tensor]
    text: str
    spans: NDArray[np.int64]


@dataclass(frozen=True)
class _Prefix:
    """A rollout that is taken apart and joined anew."""

    rollouts: Rollouts
    row: int
    columns: NDArray[np.int64]

    @property
    def spans(self) -> NDArray[np.int64]:
        """(n, 2) of the unmasked tokens; all at 0 without texts."""
        if self.rollouts.token_offsets is None:
            return np.zeros((len(self.columns), 2), dtype=np.int64)
        return spans_of(self.rollouts.token_offsets[self.row], self.columns)

    @property
    def text(self) -> str:
        return "" if self.rollouts.texts is None else self.rollouts.texts[self.row]

    def rest(self, token: int, end: int | None) -> _Rest:
        stop = len(self.columns) if end is None else end
        spans = self.spans[token:stop]
        first, last = (int(spans[0, 0]), int(spans[-1, 1])) if len(spans) else (0, 0)
        return _Rest(
            self._cut(self.columns[token], self.columns[stop - 1] + 1), self.text[first:last], spans - first
        )

    def with_rest(self, token: int, rest: _Rest) -> tuple[dict[str, torch.Tensor], str, NDArray[np.int64]]:
        """Everything before the token, gaps of the mask included, and then ``rest``."""
        before = self._cut(0, int(self.columns[token]))
        joined = {name: torch.cat([before[name], rest.fields[name]]) for name in before}
        if "entropies" in joined:  # the entropy of a distribution is known before a token is drawn from it
            joined["entropies"][int(self.columns[token])] = self._cut(0, int(self.columns[token]) + 1)[
                "entropies"
            ][-1]
        spans = self.spans
        start = int(spans[token, 0])
        text = self.text[:start]
        if token and spans[token - 1, 1] > start:  # the prefix ends inside a character
            text += REPLACEMENT
        return joined, text + rest.text, np.concatenate([spans[:token], rest.spans + len(text)])

    def _cut(self, first: int, stop: int) -> dict[str, torch.Tensor]:
        given = {
            name: getattr(self.rollouts, name) for name in ("token_ids", "response_mask", "log_probs", "entropies")
        }
        return {name: x[self.row, first:stop].clone() for name, x in given.items() if x is not None}


def _differ(
    segmenter: Callable[[Rollouts], Segments], prefix: _Prefix, token: int, rests: Sequence[_Rest]
) -> Lookahead | None:
    """Compare the ids of all tokens up to ``token``, whichever of the endings follows."""
    batch = _batch([prefix.with_rest(token, rest) for rest in rests], prefix.rollouts.texts is not None)
    ids = segmenter(batch).segment_ids.cpu().numpy()
    seen = [row[row > MASKED][: token + 1] for row in ids]
    for other in range(1, len(rests)):
        if not np.array_equal(seen[0], seen[other]):
            pair = seen[0], seen[other]
            return Lookahead(
                prefix.row,
                token,
                begins=tuple(int(np.searchsorted(own, own[-1])) for own in pair),  # type: ignore[arg-type]
                numbers=tuple(int(own[-1]) for own in pair),  # type: ignore[arg-type]
                endings=tuple(_shown(rests[i]) for i in (0, other)),  # type: ignore[arg-type]
            )
    return None


def _batch(rows: Sequence[tuple[dict[str, torch.Tensor], str, NDArray[np.int64]]], has_texts: bool) -> Rollouts:
    width = max(len(row["token_ids"]) for row, _, _ in rows)

    def padded(name: str) -> torch.Tensor:
        return torch.stack([torch.nn.functional.pad(row[name], (0, width - len(row[name]))) for row, _, _ in rows])

    signals: dict[str, Any] = {name: padded(name) for name in ("log_probs", "entropies") if name in rows[0][0]}
    if has_texts:
        signals |= {"texts": [text for _, text, _ in rows], "token_offsets": [spans for _, _, spans in rows]}
    ids, mask = padded("token_ids"), padded("response_mask")
    # outcomes differ, too: one that is read is looked ahead at
    last = mask & (mask.long().cumsum(1) == mask.sum(1, keepdim=True))
    rewards = last * (torch.arange(len(rows)) % 2)[:, None].float()
    return Rollouts(ids, mask, rewards, list(range(len(rows))), **signals)


def _places(
    ids: NDArray[np.int64], number: int, rng: np.random.Generator, near_boundaries: bool = True
) -> NDArray[np.int64]:
    """Distinct tokens after the first, half of them (one of one) next to a boundary where there is one."""
    last = len(ids) - 1
    boundaries = np.flatnonzero(np.diff(ids)) + 1
    near = np.unique((boundaries[:, None] + [-1, 0, 1]).clip(1, last)) if near_boundaries else boundaries[:0]
    chosen = rng.permutation(near)[: (number + 1) // 2]
    anywhere = rng.integers(1, last + 1, size=number - len(chosen))
    return np.unique(np.concatenate([chosen, anywhere]).astype(np.int64))


def _shown(rest: _Rest) -> str:
    text = rest.text or " ".join(map(str, rest.fields["token_ids"].tolist()))
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
