"""Kinds of characters, looked up in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD, MARK, WIDE_MARK, CLOSER, BLANK, DIGIT, NEWLINE, UNFINISHED = (1 << bit for bit in range(8))
"""Letters and digits; ``.!?``; their wide forms; quotes and brackets that close; blanks, line ends among them; digits; line
ends; U+FFFD, which stands for the bytes of a character that is not finished."""

LAST = 0xFFFF
REPLACEMENT = "\ufffd"
QUIET = (
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x206F),
    (0x3000, 0x303F),
    (0xFEFF, 0xFEFF),
    (0xFF00, 0xFF0F),
    (0xFF1A, 0xFF20),
)
"""Outside of ASCII all but these blanks, general and CJK punctuation count as letters."""


def kinds_of(text: str) -> NDArray[np.uint8]:
    """The kinds of each character, as a sum; characters beyond U+FFFF are letters."""
    units = np.frombuffer(text.encode("utf-16-le", errors="surrogatepass"), dtype=np.uint16)
    if len(units) == len(text):
        return _TABLE[units]
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    return _TABLE[np.minimum(codes, LAST)]


def _table() -> NDArray[np.uint8]:
    table = np.full(LAST + 1, WORD, dtype=np.uint8)
    table[:128] = [WORD * chr(code).isalnum() for code in range(128)]
    for low, high in QUIET:
        table[low : high + 1] = 0
    for kind, members in (
        (MARK, ".!?"),
        (WIDE_MARK, "。！？"),
        (CLOSER, "\"')]’”»"),
        (BLANK, " \t\r\n\v\f"),
        (DIGIT, "0123456789"),
        (NEWLINE, "\n"),
    ):
        table[[ord(char) for char in members]] |= kind
    table[ord(REPLACEMENT)] = UNFINISHED
    return table


_TABLE = _table()
