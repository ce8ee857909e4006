"""`rredcot demo`: the whole thing on a tiny model, on a CPU, with pictures at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.commands.needs import require
from rredcot_plugin.commands.writing import written
from rredcot_plugin.demo.run import DemoSettings, Show, run_demo
from rredcot_plugin.demo.training import TrainingFailedError
from rredcot_plugin.report.colour import credit_scale
from rredcot_plugin.report.select import worst_segments
from rredcot_plugin.report.terminal import render_trace
from rredcot_plugin.tiny.progress import Progress

NEEDS = ("verl", "reasoning_gym", "pandas", "pyarrow", "tensorboard", "matplotlib")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, logs and pictures.")] = Path("demo_output"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of data, sampling and training.")] = 0,
    estimators: Annotated[
        str, typer.Option(help="Advantage estimators to train with, separated by commas.")
    ] = "grpo,rredcot",
    rollout: Annotated[str, typer.Option(help="Rollout engine: hf_cpu or vllm.")] = "hf_cpu",
    force: Annotated[bool, typer.Option("--force", help="Repeat runs that have finished.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep Ray's session folders under /tmp.")] = False,
) -> None:
    """Train a tiny reasoner with verl on the CPU, with GRPO and with rredcot, and draw what happened."""
    require(NEEDS, "verl,demo")
    names = tuple(name.strip() for name in estimators.split(",") if name.strip())
    try:
        settings = DemoSettings(out, steps, seed, names, rollout, force, keep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with written("out", out):
        out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    try:
        _run(settings, console)
    except (ValueError, TrainingFailedError) as error:
        console.print(Text(str(error)), soft_wrap=True)
        raise typer.Exit(1) from error


def _run(settings: DemoSettings, console: Console) -> None:
    with _live(console) as show:
        runs = run_demo(settings, lambda sentence: console.print(Text(sentence)), show)
    from rredcot_plugin.demo.pictures import CAVEAT, make_pictures  # takes matplotlib along

    result = make_pictures(settings.out, runs)
    for trace, _ in worst_segments(result.traces, most=1):
        console.print(Text("\nThe step that lost the most reward:", style="bold"))
        console.print(render_trace(trace, credit_scale([trace])))
    console.print()
    console.print(_table(result.summaries))
    console.print(Text(CAVEAT, style="dim"))
    console.print(Text(f"\n{result.html.resolve()}\n{result.png.resolve()}"))


class _StepPrinter:
    """Prints a line when a run reaches its next phase or step, and not for each move of the bar."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.printed: tuple[str, str, int] | None = None

    def __call__(self, name: str, progress: Progress) -> None:
        at = (name, progress.phase, progress.step)
        if at != self.printed:
            self.console.print(_line(name, progress), soft_wrap=True)
        self.printed = at


@contextmanager
def _live(console: Console) -> Iterator[Show]:
    """Show progress on one changing line in a terminal; elsewhere print a line a step."""
    if not console.is_terminal:
        yield _StepPrinter(console)
        return
    with console.status("preparing the data …") as status:
        yield lambda name, progress: status.update(_line(name, progress))


def _line(name: str, progress: Progress) -> Text:
    return Text.assemble((f"{name:8}", "bold"), progress.line(), no_wrap=True, overflow="ellipsis")


def _table(summaries: list) -> Table:
    from rredcot_plugin.demo.summary import HEADER

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="left" if i == 0 else "right")
    for summary in summaries:
        table.add_row(*map(Text, summary.cells()))
    return table
