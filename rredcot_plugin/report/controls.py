"""The row of filters over the traces; the page's script shows it and makes it work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rredcot_plugin.report.select import Group
from rredcot_plugin.report.svg import tick
from rredcot_plugin.report.text import escape

LEAST_LOSS = 1e-9
"""Smaller ones are 0: credit is dumped with 6 decimals."""


def render_controls(groups: Sequence[Group], right_above: float, first: str | None = None) -> str:
    """Outcome, step, text, least loss, mixed prompts and order; what cannot make a difference is left out.

    ``first`` names the order in which the page has the groups; by default they stand as ``rredcot report`` has them.
    """
    steps = sorted({group.step for group in groups})
    loss = max((-group.lowest_credit for group in groups), default=0.0)
    has_loss = math.isfinite(loss) and loss >= LEAST_LOSS
    first = first or ("worst loss first" if has_loss else None)
    above = tick(right_above)
    outcomes = [("", "all"), ("right", f"right (reward > {above})"), ("wrong", f"wrong (≤ {above})")]
    orders = [("step", "step"), ("reward", "lowest reward first")]
    parts = [
        _select("outcome", "outcome", outcomes),
        _select("step", "step", [("", "all"), *((str(step), str(step)) for step in steps)])
        if len(steps) > 1
        else "",
        '<label>text in prompt or response<input type="search" name="q" autocomplete="off" spellcheck="false"></label>',
        _slider(loss) if has_loss else "",
        _select("sort", "order of prompts", [("", first), *orders] if first else _first_default(orders)),
        '<label class="check"><input type="checkbox" name="mixed">both outcomes only</label>',
        '<button type="button" name="reset">reset</button>',
        '<output class="count" role="status"></output>',
    ]
    return f'<div class="filters" role="search" aria-label="Filter traces">{"".join(parts)}</div>'


def _first_default(options: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first option gets the empty value, which is that of the page as it stands."""
    return [("", options[0][1]), *options[1:]]


def _select(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options)
    return f'<label>{escape(label)}<select name="{name}">{rows}</select></label>'


def _slider(loss: float) -> str:
    """From 0 to the largest loss shown, rounded down at its third digit so that a trace is left, in hundredths."""
    unit = 10.0 ** (math.floor(math.log10(loss)) - 2)
    most = math.floor(loss / unit + 1e-9) * unit
    return (
        # the first thing that can have a label would get it, and that is the output
        '<label for="loss"><span>a segment lost at least <output name="least">0</output></span>'
        f'<input type="range" id="loss" name="loss" min="0" max="{most:.6g}" step="{most / 100:.6g}" value="0"></label>'
    )
