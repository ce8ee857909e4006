"""One response as a segmenter sees it: tokens, characters, and what is known of the model's certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.segmenters.characters import UNFINISHED, WORD, kinds_of
from rredcot_plugin.types import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Trace:
    """One response without its masked tokens: n tokens, each with a span of characters.

    ``columns`` are the tokens' places in the response. ``spans`` (n, 2) is None without texts. ``entropies`` are those
    of the distributions that the tokens were drawn from, ``log_probs`` those of the drawn tokens; nats, or None.
    """

    columns: NDArray[np.int64]
    text: str | None = None
    spans: NDArray[np.int64] | None = None
    entropies: NDArray[np.float32] | None = None
    log_probs: NDArray[np.float32] | None = None

    @classmethod
    def of_row(cls, rollouts: Rollouts, row: int, columns: NDArray[np.int64]) -> Trace:
        """Row ``row`` of a batch, whose unmasked columns are ``columns``."""
        signals = (_signal(signal, row, columns) for signal in (rollouts.entropies, rollouts.log_probs))
        if rollouts.texts is None or rollouts.token_offsets is None:
            return cls(columns, None, None, *signals)
        spans = np.asarray(rollouts.token_offsets[row], dtype=np.int64).reshape(-1, 2)
        if len(spans) != len(columns):  # one span a column, masked ones included
            spans = spans[columns]
        return cls(columns, rollouts.texts[row], spans, *signals)

    @property
    def length(self) -> int:
        return len(self.columns)

    @cached_property
    def uncertainty(self) -> NDArray[np.float64] | None:
        """How unsure the model was, as known *before* each token is drawn; (n,) nats, or None without either signal.

        The entropy of the distribution that token t is drawn from, which is a function of the tokens before it; without
        entropies the surprisal −log π(o_{t−1}) of the token before, 0 for the first. A boundary before token t may read
        entries up to t, and stays a stopping time.
        """
        if self.entropies is not None:
            return self.entropies.astype(np.float64)
        if self.log_probs is None:
            return None
        return np.concatenate([[0.0], -self.log_probs[:-1].astype(np.float64)])

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """The kinds of every character (`characters.kinds_of`)."""
        assert self.text is not None
        return kinds_of(np.frombuffer(self.text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32))

    @cached_property
    def substance(self) -> NDArray[np.int64]:
        """(characters + 1,): how many letters and digits stand before each character."""
        return np.concatenate([[0], np.cumsum(self.kinds & WORD)])

    def tokens_from(self, chars: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """For each character the first token that begins at or after it.

        For the end of a match: the token that follows the one which completed the match.
        """
        assert self.spans is not None
        return np.searchsorted(self.spans[:, 0], np.asarray(chars, dtype=np.int64), side="left")

    @cached_property
    def may_begin(self) -> NDArray[np.bool_]:
        """(n + 1,): True where a segment may begin at a token: not at the first one, not inside a character.

        A character that is not finished yet shows as U+FFFD, and whether the next token finishes it is not known before
        that token: so no segment begins after U+FFFD either.
        """
        allowed = np.ones(self.length + 1, dtype=bool)
        allowed[[0, -1]] = False
        if self.spans is None or self.length < 2:
            return allowed
        ends = self.spans[:-1, 1]
        finished = (np.append(self.kinds, 0)[ends - 1] & UNFINISHED) == 0
        allowed[1:-1] = (self.spans[1:, 0] >= ends) & finished
        return allowed


def _signal(tensor: torch.Tensor | None, row: int, columns: NDArray[np.int64]) -> NDArray[np.float32] | None:
    if tensor is None:
        return None
    signal: NDArray[np.float32] = tensor[row].float().cpu().numpy()[columns]
    return signal
