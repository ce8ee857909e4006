"""`rredcot report`: one page, or one screen, that shows where rollouts won and lost their reward."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from rredcot_plugin.report.corpus import Corpus
    from rredcot_plugin.report.curves import Curve
    from rredcot_plugin.report.read_corpus import Show

NEEDS_FOR_CURVES = ("tensorboard",)
PAGE = Path("report.html")
STEPS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")
SHOWN = 5
"""Broken lines that are told one by one."""


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Dumps, scored rollouts or verl's rollout_data_dir: files, or folders of *.jsonl."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the page.", show_default=str(PAGE))
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Print it here; a page is then written only with --out.")
    ] = False,
    tensorboard: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]DIR", help="Add the learning curve of a run, from its tensorboard folder."),
    ] = None,
    step: Annotated[
        list[str] | None, typer.Option(metavar="N[-M]", help="Only these training steps, such as 40 or 40-60.")
    ] = None,
    max_traces: Annotated[int, typer.Option(min=1, help="Show at most so many traces.")] = 200,
    max_mb: Annotated[float, typer.Option(min=0.01, help="Show at most so many MB of them.")] = 4.0,
    worst: Annotated[int, typer.Option(min=0, help="Traces that --terminal prints, worst segments first.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the groups that are drawn at random.")] = 0,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "rredcot report",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
) -> None:
    """Show where rollouts won and lost their reward: coloured traces, calibration, histograms, learning curves."""
    from rredcot_plugin.report.read_corpus import read_corpus

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    page = out if out is not None else None if terminal else PAGE
    _check_page(page, paths, force)
    runs, steps = _runs(tensorboard or []), [_steps(text) for text in step or []]
    try:
        curves = _curves(runs)
        with _bar(errors) as show:
            corpus = read_corpus(
                paths, max_traces=max_traces, max_bytes=int(max_mb * 1e6), seed=seed, steps=steps, show=show
            )
        notes = [f"Only steps {', '.join(step)}."] if step else []
        if terminal:
            _print(corpus, curves, notes, worst, console)
        else:
            console.print(Text(shown_of(corpus)), soft_wrap=True)
        if page is not None:
            _write(page, corpus, curves, title, notes)
            console.print(Text(str(page)), soft_wrap=True)
    except (ValueError, OSError) as error:
        errors.print(Text(_reason(error)), soft_wrap=True)
        raise typer.Exit(1) from error
    _tell_problems(corpus, errors)
    if corpus.num_problems:
        raise typer.Exit(1)


def _check_page(page: Path | None, paths: Sequence[Path], force: bool) -> None:
    if page is None:
        return
    if any(page.resolve() == file.resolve() for path in paths for file in (path, *path.glob("*.jsonl"))):
        raise typer.BadParameter(f"out={page}: these are the rollouts themselves; take another file")
    if page.is_dir() or (page.exists() and not force):
        raise typer.BadParameter(
            f"out={page}: in the way; take another file with --out, or --force to overwrite it"
        )


def _runs(texts: Sequence[str]) -> dict[str, Path]:
    """Name of a run -> its tensorboard folder; without a name, that of the folder."""
    found: dict[str, Path] = {}
    for text in texts:
        name, sign, folder = text.partition("=")
        is_named = bool(sign) and not Path(text).is_dir()  # a folder may be called lr=0.1
        path = Path(folder if is_named else text)
        name = name if is_named else path.resolve().name
        if name in found:
            raise typer.BadParameter(f"tensorboard={text}: there is a run {name!r} already; give it as NAME=DIR")
        found[name] = path
    missing = [name for name in NEEDS_FOR_CURVES if find_spec(name) is None] if found else []
    if missing:
        raise typer.BadParameter(
            f"tensorboard: not installed: {', '.join(missing)}; pip install 'rredcot[report]'"
        )
    return found


def _steps(text: str) -> tuple[int, int]:
    match = STEPS.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise typer.BadParameter(f"step={text}: expected a step such as 40, or a range such as 40-60")
    return low, high


def _curves(runs: Mapping[str, Path]) -> list[Curve]:
    if not runs:
        return []
    from rredcot_plugin.report.curves import read_curves

    return read_curves(runs)


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    """A progress bar over bytes on the error stream, in a terminal only."""
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shown_of(corpus: Corpus) -> str:
    """How much of what was read is shown trace by trace."""
    shown = sum(len(group.traces) for group in corpus.groups)
    return (
        f"{shown:,} of {corpus.num_traces:,} traces are shown, of {len(corpus.groups):,} of {corpus.num_groups:,} "
        "groups; all numbers are over all of them"
    )


def _print(corpus: Corpus, curves: Sequence[Curve], notes: Sequence[str], worst: int, console: Console) -> None:
    from rredcot_plugin.report.terminal_report import render_corpus

    console.print(render_corpus(corpus, curves, notes, worst))


def _write(page: Path, corpus: Corpus, curves: Sequence[Curve], title: str, notes: Sequence[str]) -> None:
    """Write the page in one move, so that nobody meets half of it."""
    from rredcot_plugin.report.report_page import render_report

    content = render_report(corpus, curves, title, notes)
    page.parent.mkdir(parents=True, exist_ok=True)
    part = page.with_name(page.name + ".part")
    try:
        part.write_text(content, encoding="utf-8")
        os.replace(part, page)
    finally:
        part.unlink(missing_ok=True)


def _reason(error: ValueError | OSError) -> str:
    from rredcot_plugin.report.text import visible

    if isinstance(error, OSError) and error.filename is not None:
        return visible(f"{error.filename}: {error.strerror}")
    return visible(" ".join(str(error).split()))


def _tell_problems(corpus: Corpus, console: Console) -> None:
    from rredcot_plugin.report.text import visible

    for problem in corpus.problems[:SHOWN]:
        where = f"{problem.path}, line {problem.line}"
        console.print(Text(visible(f"{where}: left out: {problem.why}")), soft_wrap=True)
    if corpus.num_problems > SHOWN:
        console.print(f"and {corpus.num_problems - SHOWN:,} more lines were left out", soft_wrap=True)
