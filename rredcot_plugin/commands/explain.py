"""`rredcot explain`: what a configuration means, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from rredcot_plugin.commands.needs import require
from rredcot_plugin.commands.scripts import check_script

if TYPE_CHECKING:
    from rredcot_plugin.explanation.answer import Explanation

NEEDS = ("verl",)


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|KEY=VALUE",
            help="A script that starts verl or OpenRLHF; or options of algorithm.rredcot, or any overrides of verl's configuration.",
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            "-O",
            help="A Hydra override for the script, or a flag of OpenRLHF as --flag=value; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with a sentence on every key.")] = False,
) -> None:
    """Print the resolved options: each value and where it comes from, what is chosen automatically and why, and the cost.

    Without a script, `rredcot explain preset=lean lam=0.95` explains options by themselves.
    """
    words = what or []
    scripts = [word for word in words if "=" not in word]
    pairs = [*(word for word in words if "=" in word), *(override or [])]
    for script in scripts:
        _check_word(script)
    if len(scripts) > 1:
        raise typer.BadParameter(f"expected one script at most, got {', '.join(scripts)}")
    explanation = _explain(Path(scripts[0]) if scripts else None, pairs)
    if as_json:
        typer.echo(json.dumps(explanation.as_dict(), indent=2, default=str))
        return
    from rredcot_plugin.explanation.tables import show

    named = f"adv_estimator={explanation.estimator}"
    by = named if explanation.estimator else "options of algorithm.rredcot"
    show(explanation, f"{scripts[0]}: {by}" if scripts else by, Console(highlight=False))


def _check_word(word: str) -> None:
    """A word without ``=`` is a script, unless it looks like a key without its value."""
    from rredcot_plugin.explanation.explain import looks_like_key

    if not Path(word).exists() and looks_like_key(word):
        raise typer.BadParameter(f"{word}: expected KEY=VALUE")
    check_script(Path(word))


def _explain(script: Path | None, pairs: list[str]) -> Explanation:
    """The explanation; what is wrong goes to the stream for errors, with exit code 1."""
    from rredcot_plugin.dry_run.errors import RecipeError
    from rredcot_plugin.explanation.explain import explain_options, explain_overrides, explain_script, needs_verl

    if script is None and not needs_verl(pairs):
        try:
            return explain_options(pairs)
        except ValueError as error:
            raise _wrong(error) from error
    if script is None:
        require(NEEDS, "verl")
    try:
        return explain_overrides(pairs) if script is None else explain_script(script, pairs)
    except RecipeError as error:
        raise _wrong(error) from error


def _wrong(error: Exception) -> typer.Exit:
    Console(stderr=True, highlight=False).print(Text.assemble(("✗ ", "bold red"), str(error)), soft_wrap=True)
    return typer.Exit(1)
