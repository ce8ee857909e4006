"""`rredcot doctor`: is everything in place for training?"""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.commands.checks import Check, run_checks

MARKS = {"ok": Text("✓", style="green"), "failed": Text("✗", style="bold red"), "note": Text("·", style="yellow")}

READY = {
    "verl": "algorithm.adv_estimator=rredcot",
    "openrlhf": "rredcot openrlhf --algo.advantage.estimator rredcot",
}
"""Name of a trainer's check -> what to write there."""


def doctor() -> None:
    """Check the installed trainer, verl or OpenRLHF, and the devices; exit code 1 if a check fails."""
    console = Console()
    with console.status("importing the trainer in a process of its own …"):
        checks = run_checks()
    console.print(checks_table(checks))
    failed = sum(check.status == "failed" for check in checks)
    if failed:
        console.print(f"{failed} of {len(checks)} checks failed", style="bold red")
        raise typer.Exit(1)
    for host, key in READY.items():
        if any(check.name == host for check in checks):
            console.print(f"ready: {key}", style="green", highlight=False)


def checks_table(checks: list[Check]) -> Table:
    """One line a check: mark, name, what was found, and what to do about it."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.way_out:
            found.append(f"\n→ {check.way_out}", style="yellow")
        table.add_row(MARKS[check.status], Text(check.name), found)
    return table
