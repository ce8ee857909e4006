"""The pages stay short enough to be read: words as a reader counts them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_WORDS, MOST_README_LINES = 20_000, 140


def words(text: str) -> int:
    """Words of prose, tables and code; no bars and rules of tables, targets of links, pictures and comments.

    >>> words("| a | [two words](x.md) |\\n| --- | --- |\\n![a picture](y.png) <!-- a comment -->")
    3
    """
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_the_pages_can_be_read() -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 20
    assert sum(words(page.read_text(encoding="utf-8")) for page in pages) < MOST_WORDS


def test_the_readme_fits_on_a_few_screens() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= MOST_README_LINES
