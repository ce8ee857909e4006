"""Which characters of a response each token stands for, without decoding and encoding again.

A token's bytes are looked up in a table made once per tokenizer; a response is the concatenation of its
tokens' bytes. Bytes that are no valid UTF-8 become one replacement character each, so broken text still
has exact offsets and tokens that share a multi-byte character share its span.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

REPLACEMENT = "�"


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(rest)})
    return table


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token of a vocabulary: ``data[start[i]:start[i + 1]]`` for token i."""

    data: NDArray[np.uint8]
    start: NDArray[np.int64]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> TokenBytes:
        """Read the table off a *fast* Hugging Face tokenizer: byte-level BPE, SentencePiece or characters.

        Raises:
            ValueError: a slow tokenizer, which cannot tell where its tokens come from.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"tokenizer {type(tokenizer).__name__}: expected a fast tokenizer (one with character offsets), "
                "got a slow one; load it with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        decoder = str(tokenizer.backend_tokenizer.decoder)
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        special = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
        to_bytes = _byte_level if "ByteLevel" in decoder else _sentencepiece if "Replace" in decoder else _plain
        pieces = [_plain(t or "") if t in special else to_bytes(t or "") for t in tokens]
        start = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=start[1:])
        return cls(np.frombuffer(b"".join(pieces), dtype=np.uint8), start)

    def align(self, token_ids: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """Text and half-open character spans (n, 2) of a sequence of tokens.

        An id outside the vocabulary stands for no characters.
        """
        ids = np.asarray(token_ids, dtype=np.int64)
        known = (ids >= 0) & (ids < len(self.start) - 1)
        ids = np.where(known, ids, 0)
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
        # a token without bytes at the very end stands behind the last character, not on it
        first = np.where((lengths == 0) & (ends == total), last, first)
        return re.sub("[\udc80-\udcff]", REPLACEMENT, text), np.stack([first, last], axis=1)


def _first_bytes(text: str) -> NDArray[np.int64]:
    """Byte position of each character; an escaped invalid byte counts as the one byte it was."""
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    escaped = (points >= 0xDC80) & (points <= 0xDCFF)
    width = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    width = np.where(escaped, 1, width)
    return np.concatenate([[0], np.cumsum(width)[:-1]]) if len(width) else np.zeros(0, dtype=np.int64)


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes:
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    return bytes([int(byte.group(1), 16)]) if byte else token.replace("▁", " ").encode()


def _plain(token: str) -> bytes:
    return token.encode("utf-8", errors="replace")
