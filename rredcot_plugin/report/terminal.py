"""One trace in the terminal, with rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rredcot_plugin.report.colour import kind_of, strength
from rredcot_plugin.report.text import plain, readable_prompt, short, signed, visible
from rredcot_plugin.report.traces import Trace

BAR = 12
"""Characters of a bar at full strength."""

STYLES = {"neg": "dark_orange", "pos": "dodger_blue1", "zero": "dim"}


def render_trace(trace: Trace, scale: float) -> RenderableType:
    """Prompt, then one line a segment: credit, a bar as long as |credit| / ``scale``, the value, the text.

    Model text is put in as it is: no markup in it is obeyed, no escape sequence either.
    """
    title = Text.assemble(
        ("".join(readable_prompt(trace.prompt).splitlines()[-1:]), "bold"),
        ("   right answer " + visible(trace.ground_truth) if trace.ground_truth is not None else "", "dim"),
        (f"   reward {short(trace.reward)}, step {trace.step}", "dim"),
    )
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("credit", justify="right", no_wrap=True)
    table.add_column("", min_width=BAR, no_wrap=True)
    table.add_column("value", justify="right", style="dim", no_wrap=True)
    table.add_column("step of the reasoning", overflow="fold")
    for i, segment in enumerate(trace.segments):
        colour = STYLES[kind_of(segment.credit)]
        bar = "█" * round(BAR * strength(segment.credit, scale))
        text = Text(visible(segment.text.strip("\n")), style="bold" if i == trace.worst else "")
        table.add_row(
            Text(signed(segment.credit), style=colour), Text(bar, style=colour), plain(trace.values[i + 1]), text
        )
    return Group(title, table)
