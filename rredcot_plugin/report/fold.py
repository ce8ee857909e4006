"""Long texts with their middle folded away: the browser opens it on a click, without a script."""

from __future__ import annotations

from rredcot_plugin.report.text import escape

WHOLE = 1.5
"""Texts up to this many times the budget are shown whole: folding away a few words helps nobody."""


def folded(text: str, budget: int) -> str:
    """Escaped HTML: the first two thirds and the last third of ``budget`` characters, the middle folded.

    The pieces are elements of class ``part``, so that a search can read the text without the button's.
    """
    if len(text) <= WHOLE * budget:
        return _part(text)
    start = _after_blank(text, 2 * budget // 3)
    end = _after_blank(text, len(text) - budget // 3)
    return (
        f"{_part(text[:start])}<details><summary>… show all {len(text):,} characters</summary>"
        f"{_part(text[start:end])}</details>{_part(text[end:])}"
    )


def _part(text: str) -> str:
    return f'<span class="part">{escape(text)}</span>'


def _after_blank(text: str, at: int) -> int:
    """The place after the last blank before ``at``, if there is one within 40 characters; else ``at``."""
    blank = max(text.rfind(" ", at - 40, at), text.rfind("\n", at - 40, at))
    return blank + 1 if blank >= 0 else at
