"""An explanation in the terminal; every line of it can be read without a terminal too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.explanation.answer import REGISTRIES, Explanation, Row
from rredcot_plugin.presets import PRESET

DEFAULT = "default"


def show(found: Explanation, title: str, console: Console) -> None:
    """Print all of it."""
    console.print(Text(title, style="bold"), soft_wrap=True)
    if found.rows:
        console.print(_options(found.rows))
        _section(
            console,
            "What that means",
            [
                f"{row.key}: {row.says}"
                for row in found.rows
                if row.key in REGISTRIES or (row.key == PRESET and row.value)
            ],
        )
        _section(console, "Chosen automatically", [_choice(row) for row in found.rows if row.reason])
        _section(console, "Cost on top of GRPO, per step", found.costs)
    for line in found.notes:
        console.print(Text.assemble(("· ", "cyan"), line), soft_wrap=True)
    for line in found.warnings:
        console.print(Text.assemble(("! ", "yellow"), line), soft_wrap=True)


def _options(rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for name in ("key", "value", "from"):
        table.add_column(name, overflow="fold")
    for row in rows:
        style = "dim" if row.source == DEFAULT else ""
        table.add_row(Text(row.key, style), Text(written(row.value), style), Text(row.source, style))
    return table


def _choice(row: Row) -> str:
    becomes = "" if row.becomes is None or row.becomes == row.value else f" -> {written(row.becomes)}"
    return f"{row.key}={written(row.value)}{becomes}: {row.reason}"


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def written(value: Any) -> str:
    """A value as one writes it in a configuration."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
