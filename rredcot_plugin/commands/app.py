"""The typer application: options that all commands share, and the table of commands."""

from __future__ import annotations

from typing import Annotated

import typer

import rredcot_plugin
from rredcot_plugin.commands.demo import demo
from rredcot_plugin.commands.doctor import doctor
from rredcot_plugin.commands.dry_run import dry_run
from rredcot_plugin.commands.explain import explain
from rredcot_plugin.commands.filter import filter_rollouts
from rredcot_plugin.commands.names import list_names
from rredcot_plugin.commands.openrlhf import ANYTHING, openrlhf
from rredcot_plugin.commands.plan import plan
from rredcot_plugin.commands.recipe import recipe
from rredcot_plugin.commands.report import report
from rredcot_plugin.commands.score import score

app = typer.Typer(
    name="rredcot",
    help="Segment-level credit assignment for reasoning models, for verl and OpenRLHF.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rredcot {rredcot_plugin.__version__}")
        raise typer.Exit()


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Segment-level credit assignment for reasoning models, for verl and OpenRLHF."""


app.command("doctor")(doctor)
app.command("list")(list_names)
app.command("demo")(demo)
app.command("score")(score)
app.command("filter")(filter_rollouts)
app.command("dry-run")(dry_run)
app.command("report")(report)
app.command("plan")(plan)
app.command("openrlhf", context_settings=ANYTHING)(openrlhf)
app.command("explain")(explain)
app.add_typer(recipe, name="recipe")
