"""Which characters of a response each token stands for, without decoding and encoding again.

A token's bytes are looked up in a table made once per tokenizer; a response is the concatenation of its
tokens' bytes. Bytes that are not valid UTF-8 become one replacement character each, so broken text still
has exact offsets and tokens that share a multi-byte character share its span.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

REPLACEMENT = "�"
SAMPLES = 256
"""Sequences on which a table is compared with its tokenizer's own decoder."""


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(rest)})
    return table


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token of a vocabulary of V: ``data[start[i]:start[i + 1]]`` for token i.

    Entry V + i is token i as the first of a text, where SentencePiece decoders leave its space out. ``special`` are the
    tokens that a decoder leaves out that is asked to skip special ones; ``joins`` says that it writes one replacement
    character for all bytes of a broken sequence, as byte-level decoders do, not one for each.
    """

    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    special: tuple[int, ...] = ()
    joins: bool = False

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> TokenBytes:
        """Read the table off a *fast* Hugging Face tokenizer whose decoder writes token for token.

        That is byte-level BPE, SentencePiece (BPE with byte fallback, Unigram), WordPiece, characters.

        Raises:
            ValueError: a slow tokenizer, which cannot tell where its tokens come from; one whose decoder
                makes other text of samples than the table does.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: expected a fast tokenizer (one with character offsets), "
                "got a slow one; load it with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        backend = tokenizer.backend_tokenizer
        size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        read = _reader(backend.decoder)
        tokens = [backend.id_to_token(i) for i in range(size)]
        # the decoder drops an id that stands for no token
        pieces = [read(t, first) if t is not None else b"" for first in (False, True) for t in tokens]
        start = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=start[1:])
        special = tuple(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        joins = _is_byte_level(backend.decoder)
        table = cls(np.frombuffer(b"".join(pieces), dtype=np.uint8), start, special, joins)
        table._check(tokenizer, np.array([i for i, t in enumerate(tokens) if t is not None]))
        return table

    @property
    def vocab_size(self) -> int:
        return (len(self.start) - 1) // 2

    def going_on(self) -> TokenBytes:
        """The table of texts that follow others, whose first token keeps its space."""
        start, size = self.start[: self.vocab_size + 1], int(self.start[self.vocab_size])
        data = np.concatenate([self.data[:size]] * 2)
        return dataclasses.replace(self, data=data, start=np.concatenate([start, start[1:] + size]))

    def _check(self, tokenizer: Any, known: NDArray[np.int64]) -> None:
        """Raise ``ValueError`` if the tokenizer decodes short samples otherwise: then tokens depend on neighbours."""
        samples = np.random.default_rng(0).choice(known, size=(SAMPLES, 4))
        samples[::2, 1] = samples[::2, 0]  # a decoder may drop repetitions
        for sample in samples:
            own = tokenizer.decode(sample.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            text, _ = self.align(sample)
            if text != own and REPLACEMENT not in own:
                raise ValueError(
                    f"tokenizer {_name(tokenizer)}: expected a decoder that writes token for token, got "
                    f"{tokenizer.backend_tokenizer.decoder}, which writes {own!r} and not {text!r} for the tokens "
                    f"{sample.tolist()}; byte-level BPE, SentencePiece and WordPiece decoders can be aligned"
                )

    def align(self, token_ids: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """Text and half-open character spans (n, 2) of a sequence of tokens.

        An id outside the vocabulary stands for no characters.
        """
        text, spans = self._escaped(token_ids)
        return _ESCAPED.sub(REPLACEMENT, text), spans

    def _escaped(self, token_ids: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """The same with a lone surrogate for each byte that is not valid UTF-8."""
        ids = np.asarray(token_ids, dtype=np.int64)
        known = (ids >= 0) & (ids < self.vocab_size)
        ids = np.where(known, ids, 0)
        if known.any():
            ids[known.argmax()] += self.vocab_size
        lengths = np.where(known, self.start[ids + 1] - self.start[ids], 0)
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        # the source position of every byte: token start + offset within the token
        within = np.arange(total) - np.repeat(ends - lengths, lengths)
        raw = self.data[np.repeat(self.start[ids], lengths) + within].tobytes()
        text = raw.decode("utf-8", errors="surrogateescape")
        first_byte = _first_bytes(text)
        first = np.searchsorted(first_byte, ends - lengths, side="right") - 1
        last = np.searchsorted(first_byte, ends, side="left")
        # a token without bytes at the very end stands after the last character, not on it
        first = np.where((lengths == 0) & (ends == total), last, first)
        return text, np.stack([first, last], axis=1)

    def shown_starts(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,): the first character of each token in the text without special tokens, which is what verl decodes for reward
        functions; a special token stands before the character that follows it.

        Off where a decoder with byte fallback also replaces whole characters, next to a broken one.
        """
        shown = ~np.isin(token_ids, self.special)
        text, spans = self._escaped(np.asarray(token_ids)[shown])
        starts = np.append(spans[:, 0], len(text))[np.cumsum(shown) - shown]
        return _joined_places(text)[starts] if self.joins else starts


def _first_bytes(text: str) -> NDArray[np.int64]:
    """Byte position of each character; an escaped invalid byte counts as the one byte it was."""
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    escaped = (points >= 0xDC80) & (points <= 0xDCFF)
    width = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    width = np.where(escaped, 1, width)
    return np.concatenate([[0], np.cumsum(width)[:-1]]) if len(width) else np.zeros(0, dtype=np.int64)


def _joined_places(text: str) -> NDArray[np.int64]:
    """(len(text) + 1,): the place of each character once the escaped bytes of a broken sequence are one character."""
    begins = np.ones(len(text) + 1, dtype=np.int64)
    for run in re.finditer(f"{_ESCAPED.pattern}+", text):
        raw, at = run.group().encode(errors="surrogateescape"), 0
        while at < len(raw):
            end = at + _broken_bytes(raw[at : at + 4])
            begins[run.start() + at + 1 : run.start() + end] = 0
            at = end
    return np.cumsum(begins) - 1


def _broken_bytes(raw: bytes) -> int:
    """How many of these bytes, which begin with an invalid one, a decoder replaces together."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.end
    raise AssertionError(f"{raw!r} is valid")


_ESCAPED = re.compile("[\udc80-\udcff]")
_ALPHABET = _byte_level_alphabet()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"


def _name(tokenizer: Any) -> str:
    path = getattr(tokenizer, "name_or_path", "")
    return f"{type(tokenizer).__name__} {path!r}" if path else type(tokenizer).__name__


def _reader(decoder: Any) -> Callable[[str, bool], bytes]:
    """(token, whether it is the first of a text) -> its bytes, for a decoder of the library ``tokenizers``.

    Decoders return text, so the tokens that stand for single bytes are read here.
    """
    if _is_byte_level(decoder):
        return _byte_level
    has_bytes = "ByteFallback(" in str(decoder)

    def decode(tokens: list[str]) -> str:
        text: str = decoder.decode(tokens) if decoder is not None else " ".join(tokens)
        return text

    def read(token: str, first: bool) -> bytes:
        byte = _BYTE.fullmatch(token) if has_bytes else None
        if byte and int(byte.group(1), 16) >= 0x80:
            return bytes([int(byte.group(1), 16)])
        text = decode([token]) if first else decode([_ANCHOR, token])[len(_ANCHOR) :]
        return text.encode()

    return read


def _is_byte_level(decoder: Any) -> bool:
    return "ByteLevel(" in str(decoder)


def _byte_level(token: str, first: bool) -> bytes:
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()
