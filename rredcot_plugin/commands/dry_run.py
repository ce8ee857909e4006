"""`rredcot dry-run`: check a recipe without its GPUs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from rredcot_plugin.commands.needs import require
from rredcot_plugin.commands.scripts import check_script
from rredcot_plugin.commands.writing import written
from rredcot_plugin.installed import installed_version

if TYPE_CHECKING:
    from rredcot_plugin.dry_run.findings import Finding
    from rredcot_plugin.tiny.progress import Progress
    from rredcot_plugin.tiny.watched import Show

NEEDS = ("pyarrow", "tokenizers")
TRAINERS = ("verl", "openrlhf")
MARKS = {"ok": ("✓", "green"), "need": ("·", "cyan"), "note": ("!", "yellow"), "wrong": ("✗", "bold red")}


def dry_run(
    recipe: Annotated[
        list[Path], typer.Argument(help="Scripts that start verl or OpenRLHF, such as recipes/math/run_x.sh.")
    ],
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override", "-O", help="A Hydra override, or a flag of OpenRLHF as --flag=value; may be repeated."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Training steps on the CPU; 0: check and estimate only.")] = 2,
    gpu_gb: Annotated[float, typer.Option(min=1.0, help="Memory of one GPU, for the estimate.")] = 80.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep logs, overrides and metrics in this folder.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List the overrides that had another value on the CPU.")
    ] = False,
) -> None:
    """Check recipes without their GPUs: configuration, data, reward, memory, and two steps on the CPU."""
    if not any(installed_version(name) for name in TRAINERS):
        require(TRAINERS[:1], "verl,recipes")
    require(NEEDS, "verl,recipes")
    for script in recipe:
        check_script(script)
    if out is not None:
        with written("out", out):
            out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise typer.BadParameter(f"out={out}: not empty; use another folder")
    console = Console(highlight=False)
    failed = [
        str(script)
        for script in recipe
        if not _rehearse(script, override or [], steps, gpu_gb, out, console, verbose)
    ]
    if len(recipe) > 1:
        console.print(Text(f"{len(recipe) - len(failed)} of {len(recipe)} recipes passed", style="bold"))
    if failed:
        raise typer.Exit(1)


def _rehearse(
    script: Path,
    overrides: list[str],
    steps: int,
    gpu_gb: float,
    out: Path | None,
    console: Console,
    verbose: bool,
) -> bool:
    """Print findings as they come; whether nothing was wrong. The log of a training that failed is kept."""
    from transformers.utils import logging

    from rredcot_plugin.dry_run.errors import RecipeError
    from rredcot_plugin.dry_run.findings import Finding
    from rredcot_plugin.dry_run.rehearsal import Rehearsal

    logging.disable_progress_bar()  # of saving a tiny model
    base = Path(tempfile.mkdtemp(prefix="rredcot_dry_run_")) if out is None else out
    rehearsal = Rehearsal(script, tuple(overrides), base.resolve() / script.stem, steps, gpu_gb, verbose)
    console.print(Text(str(script), style="bold"), soft_wrap=True)
    try:
        with _live(console) as show:
            for finding in rehearsal.run(show):
                _print(console, finding)
    except RecipeError as error:
        _print(console, Finding("broken", str(error), "wrong"))
        passed = False
    else:
        passed = True
    if out is None and (passed or not rehearsal.log.exists()):  # a log is named in the message
        shutil.rmtree(base, ignore_errors=True)
    return passed


def _print(console: Console, finding: Finding) -> None:
    mark, style = MARKS[finding.kind]
    console.print(Text.assemble((f"  {mark} ", style), f"{finding.name:15} ", finding.text), soft_wrap=True)


@contextmanager
def _live(console: Console) -> Iterator[Show]:
    """Progress on one changing line in a terminal; elsewhere one line per phase."""
    if not console.is_terminal:
        seen: set[str] = set()

        def tell(progress: Progress) -> None:
            if progress.phase not in seen:
                seen.add(progress.phase)
                console.print(Text(f"    {progress.phase} …"), soft_wrap=True)

        yield tell
        return
    with console.status("reading the recipe …") as status:
        yield lambda progress: status.update(Text(progress.line(), no_wrap=True, overflow="ellipsis"))
