"""One response as a segmenter sees it: tokens, characters, and what is known of the model's certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

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
    def of_row(
        cls, rollouts: Rollouts, row: int, columns: NDArray[np.int64], *batch_signals: NDArray[np.float32] | None
    ) -> Trace:
        """Row ``row`` of a batch, whose unmasked columns are ``columns``; ``batch_signals`` are its entropies and log-probs as
        arrays."""
        signals = (None if signal is None else signal[row][columns] for signal in batch_signals)
        if rollouts.texts is None or rollouts.token_offsets is None:
            return cls(columns, None, None, *signals)
        return cls(columns, rollouts.texts[row], spans_of(rollouts.token_offsets[row], columns), *signals)

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
        return kinds_of(self.text)

    @cached_property
    def last_of_turns(self) -> NDArray[np.int64]:
        """The tokens after which masked ones stand, the last token apart."""
        if self.length == 0 or self.columns[-1] - self.columns[0] == self.length - 1:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.diff(self.columns) > 1)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(n,): the character at which each token begins."""
        assert self.spans is not None
        return np.ascontiguousarray(self.spans[:, 0])

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(n,): the character after each token."""
        assert self.spans is not None
        return np.ascontiguousarray(self.spans[:, 1])

    def wrote(self, char: int) -> bool:
        """Whether a character is of one of these tokens, and not of a masked one."""
        token = int(np.searchsorted(self.ends, char, side="right"))
        return token < self.length and int(self.starts[token]) <= char

    def last_words(self, chars: Sequence[int]) -> list[int]:
        """The last letter or digit before each of some characters in ascending order; −1 where there is none."""
        words = (self.kinds & WORD).tobytes()
        found, last, before = [], -1, 0
        for char in chars:
            last = max(last, words.rfind(WORD, before, char))
            found.append(last)
            before = char
        return found

    def has_words(self, chars: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a letter or digit stands between each of some characters in ascending order and the one before it; the
        first one counts from the beginning of the text."""
        chars = np.maximum.accumulate(chars)
        before = np.concatenate([[0], chars[:-1]])
        found = np.zeros(len(chars), dtype=bool)
        apart = np.flatnonzero(before < chars)  # `reduceat` takes a stretch of nothing for one character
        if len(apart):
            found[apart] = np.bitwise_or.reduceat(self.kinds[: chars[-1]], before[apart]) & WORD > 0
        return found

    def tokens_from(self, chars: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """For each character the first token that begins at or after it.

        For the end of a match: the token that follows the one which completed the match.
        """
        return np.searchsorted(self.starts, np.asarray(chars, dtype=np.int64), side="left")

    def may_begin(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a segment may begin at each of ``tokens``, which lie from 1 to n − 1: not inside a character.

        A character that is not finished yet shows as U+FFFD, and whether the next token finishes it is not known before
        that token: so no segment begins after U+FFFD either, unless what a tool wrote has told already that it never is.
        """
        if self.spans is None or len(tokens) == 0:
            return np.ones(len(tokens), dtype=bool)
        starts, ends = self.starts[tokens], self.ends[tokens - 1]
        unfinished = np.append(self.kinds & UNFINISHED, 0) > 0
        over = (ends == 0) | ~unfinished[ends - 1] | ((starts > ends) & ~unfinished[ends])
        allowed: NDArray[np.bool_] = (starts >= ends) & over
        return allowed


def spans_of(offsets: Any, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, 2): the spans of the unmasked tokens, which stand in these columns, from one for each of them or for every column."""
    spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    return spans if len(spans) == len(columns) else spans[columns]
