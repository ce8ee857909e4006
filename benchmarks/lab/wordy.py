"""A sum that is done early in a trace, among lines of free words: most of what is written does not matter.

Reasoning models are known to go on long after the solution stands there ("Do NOT Think That Much for 2+3=?",
arXiv 2412.21187), and every word that they choose adds its noise to a gradient that gives all tokens one advantage.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = ("ok", "so", "now", "we", "see", "the", "sum", "is", "as", "it", "was", "got", "let", "me", "try", "yes")
"""Of a free line, each as probable as the others."""
WORDS_A_LINE = 2
FREE_LINES = (4, 7)
"""Least and most of a trace."""
TERMS, MINUSES = 3, 1


def among_free_lines(steps: Sequence[str], rng: random.Random) -> list[str]:
    """The steps in their order, one free line or none before each, the rest of the free lines after them."""
    left, lines = rng.randint(*FREE_LINES), []
    for step in steps:
        if rng.random() < 0.5:
            lines.append(_free_line(rng))
            left -= 1
        lines.append(step)
    return lines + [_free_line(rng) for _ in range(left)]


def _free_line(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=WORDS_A_LINE))


def is_free(line: str) -> bool:
    """Whether a line says nothing.

    >>> is_free("so now"), is_free("+5 12"), is_free("so")
    (True, False, False)
    """
    words = line.split(" ")
    return len(words) == WORDS_A_LINE and set(words) <= set(WORDS)
