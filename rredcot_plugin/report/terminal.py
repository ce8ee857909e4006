"""One trace in the terminal, with rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rredcot_plugin.report.colour import kind_of, strength
from rredcot_plugin.report.text import decimals, plain, readable_prompt, short, signed, visible
from rredcot_plugin.report.traces import Trace
from rredcot_plugin.report.turns import observation_of, turn_line
from rredcot_plugin.report.why import probability

BAR = 12
"""Characters of a bar at full strength."""

MOST_ANSWERS, LONGEST_ANSWER, LONGEST_OBSERVATION, LONGEST_TEXT = 3, 40, 300, 1200

STYLES = {"neg": "dark_orange", "pos": "dodger_blue1", "zero": "dim"}


def render_trace(trace: Trace, scale: float) -> RenderableType:
    """Prompt, then one line per segment: credit, advantage, a bar as long as |credit| / ``scale``, the value after it, the
    text; then the probed answers with their probabilities at each boundary.

    Model text is put in as it is: no markup in it is obeyed, no escape sequence either.
    """
    title = Text.assemble(
        (_cut("".join(readable_prompt(trace.prompt).splitlines()[-1:]), LONGEST_OBSERVATION), "bold"),
        (
            "   right answer " + _cut(visible(trace.ground_truth), LONGEST_OBSERVATION)
            if trace.ground_truth is not None
            else "",
            "dim",
        ),
        (f"   reward {short(trace.reward)}, step {trace.step}", "dim"),
    )
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("credit", justify="right", no_wrap=True)
    table.add_column("advantage", justify="right", no_wrap=True)
    table.add_column("", min_width=BAR, no_wrap=True)
    table.add_column("value", justify="right", style="dim", no_wrap=True)
    table.add_column("segment", overflow="fold")
    digits = decimals(scale)
    for i, segment in enumerate(trace.segments):
        colour = STYLES[kind_of(segment.credit)]
        bar = "█" * round(BAR * strength(segment.credit, scale))
        for row in _turn(trace, i, digits):
            table.add_row("", "", "", "", row)
        text = Text(
            _cut(visible(segment.text.strip("\n")), LONGEST_TEXT), style="bold" if i == trace.worst else ""
        )
        table.add_row(
            Text(signed(segment.credit, digits), style=colour), signed(segment.advantage, digits),
            Text(bar, style=colour), plain(trace.values[i + 1], digits), text,
        )  # fmt: skip
    return Group(title, table, *_answers(trace))


def _cut(text: str, most: int) -> str:
    """The text, its middle left out where it has more characters: it is to fit on a screen."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text):,} characters) … {text[-most // 2 :]}"


def _turn(trace: Trace, index: int, digits: int) -> list[Text]:
    """What was observed before a segment, its middle left out where it is long, and the line of its turn."""
    observed = _cut(observation_of(trace, index), LONGEST_OBSERVATION)
    line = turn_line(trace, index, digits)
    return [Text(row, style="italic dim") for row in (observed, line) if row]


def _answers(trace: Trace) -> list[Text]:
    """The probed answers that were ever most probable, a line each."""
    found = []
    for proposal in trace.proposals[:MOST_ANSWERS]:
        answer = " ".join(visible(proposal.text).split())
        shown = answer if len(answer) <= LONGEST_ANSWER else answer[:LONGEST_ANSWER] + " …"
        at = " ".join(map(probability, proposal.probabilities))
        found.append(
            Text(f"probed {shown} (reward {plain(proposal.utility)}), at each boundary: {at}", style="dim")
        )
    return found
