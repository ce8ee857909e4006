"""`rredcot report`: one page, or one screen, that shows where rollouts won and lost their reward."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rredcot_plugin.adapter.whole_file import whole_file
from rredcot_plugin.commands.report_steps import parse_steps, steps_there
from rredcot_plugin.commands.writing import check_is_file, why_not_written

if TYPE_CHECKING:
    from rredcot_plugin.report.corpus import Corpus
    from rredcot_plugin.report.curves import Curve
    from rredcot_plugin.report.read_corpus import Show

NEEDS_FOR_CURVES = ("tensorboard",)
PAGE = Path("report.html")
EVERY = 10.0
SHOWN = 5
"""Broken lines that are told one by one."""


@dataclass(frozen=True)
class _Wanted:
    """What to read, and how much of it to show where."""

    paths: list[Path]
    page: Path | None
    tensorboard: dict[str, Path]
    step_texts: list[str]
    max_traces: int
    max_mb: float
    seed: int
    title: str

    @property
    def bounds(self) -> dict[str, Any]:
        """Arguments of ``read_corpus`` and ``compare_runs``."""
        steps = [parse_steps(text) for text in self.step_texts]
        max_bytes = int(self.max_mb * 1e6)
        return {"max_traces": self.max_traces, "max_bytes": max_bytes, "seed": self.seed, "steps": steps}

    @property
    def notes(self) -> list[str]:
        return [f"Only steps {', '.join(self.step_texts)}."] if self.step_texts else []


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Dumps, scored rollouts or verl's rollout_data_dir: files, or folders of *.jsonl."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the page.", show_default=str(PAGE))
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Print to the terminal; a page is then written only with --out.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Each PATH is a run; show their curves and traces side by side.")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="With --compare: the name of a run; once per PATH, in the same order.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page again when the files change, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, show_default=f"{EVERY}", help="With --watch: seconds between updates."),
    ] = None,
    tensorboard: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]DIR", help="Add the learning curve of a run, from its tensorboard folder."),
    ] = None,
    step: Annotated[
        list[str] | None, typer.Option(metavar="N[-M]", help="Only these training steps, such as 40 or 40-60.")
    ] = None,
    max_traces: Annotated[int, typer.Option(min=1, help="Show at most this many traces.")] = 200,
    max_mb: Annotated[float, typer.Option(min=0.01, help="Show at most this many MB of traces.")] = 4.0,
    worst: Annotated[int, typer.Option(min=0, help="Traces that --terminal prints, worst segments first.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the groups that are drawn at random.")] = 0,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "rredcot report",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
) -> None:
    """Show where rollouts won and lost their reward: coloured traces, calibration, histograms, learning curves."""
    _check_modes(terminal=terminal, compare=compare, watch=watch, label=label or [])
    if every is not None and not watch:
        raise typer.BadParameter(f"every={every:g}: has no effect without --watch; give --watch as well")
    page = out if out is not None else None if terminal else PAGE
    _check_page(page, paths, force)
    wanted = _Wanted(paths, page, _runs(tensorboard or []), step or [], max_traces, max_mb, seed, title)
    _ = wanted.bounds  # a wrong step is told before anything is read
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        if compare:
            problems = _compare(wanted, label or [], console, errors)
        elif watch:
            problems = _watch(wanted, every or EVERY, console, errors)
        else:
            problems = _once(wanted, worst if terminal else None, console, errors)
    except (ValueError, OSError) as error:
        there = steps_there(paths, each=compare) if step and isinstance(error, ValueError) else ""
        errors.print(Text(_reason(error) + there), soft_wrap=True)
        raise typer.Exit(1) from error
    if problems:
        raise typer.Exit(1)


def _check_modes(*, terminal: bool, compare: bool, watch: bool, label: Sequence[str]) -> None:
    chosen = [name for name, on in (("terminal", terminal), ("compare", compare), ("watch", watch)) if on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"--{chosen[0]} and --{chosen[1]} cannot be combined; use one of them")
    if label and not compare:
        raise typer.BadParameter(f"label={label[0]}: has no effect without --compare; give --compare as well")


def _once(wanted: _Wanted, worst: int | None, console: Console, errors: Console) -> int:
    """A page, or with ``worst`` the same printed; how many lines could not be read."""
    from rredcot_plugin.report.read_corpus import read_corpus
    from rredcot_plugin.report.report_page import render_report

    curves = _curves(wanted.tensorboard)
    with _bar(errors) as show:
        corpus = read_corpus(wanted.paths, show=show, **wanted.bounds)
    if worst is not None:
        _print(corpus, curves, wanted.notes, worst, console)
    else:
        console.print(Text(shown_of(corpus)), soft_wrap=True)
    if wanted.page is not None:
        _write(wanted.page, render_report(corpus, curves, wanted.title, wanted.notes))
        console.print(Text(str(wanted.page)), soft_wrap=True)
    _tell_problems(corpus, errors)
    return corpus.num_problems


def _compare(wanted: _Wanted, labels: Sequence[str], console: Console, errors: Console) -> int:
    """A page of several runs; how many lines could not be read."""
    from rredcot_plugin.report.compare import compare_runs
    from rredcot_plugin.report.compare_page import render_comparison

    assert wanted.page is not None
    runs = name_runs(wanted.paths, labels)
    curves = _curves(wanted.tensorboard)
    with _bar(errors) as show:
        found = compare_runs(runs, show=show, **wanted.bounds)
    _write(wanted.page, render_comparison(found, curves, wanted.title, wanted.notes))
    console.print(f"{len(found.pairs):,} of {found.shared:,} prompts that all runs have are shown", soft_wrap=True)
    console.print(Text(str(wanted.page)), soft_wrap=True)
    for run in found.runs:
        _tell_problems(run.corpus, errors)
    return sum(run.corpus.num_problems for run in found.runs)


def name_runs(paths: Sequence[Path], labels: Sequence[str]) -> dict[str, Path]:
    """Name of a run -> its path: the labels, else the shortest ends of the paths that tell them apart."""
    from rredcot_plugin.report.compare import MOST_RUNS

    if not 2 <= len(paths) <= MOST_RUNS:
        raise typer.BadParameter(f"compare: expected 2 to {MOST_RUNS} paths, one per run, got {len(paths)}")
    if labels and len(labels) != len(paths):
        raise typer.BadParameter(f"label: expected one per path, {len(paths)}, got {len(labels)}")
    whole = [path.resolve() for path in paths]
    lengths = range(1, max(len(path.parts) for path in whole) + 1)
    ends = [["/".join(path.parts[-length:]) for path in whole] for length in lengths]
    names = list(labels) or next((some for some in ends if len(set(some)) == len(paths)), [])
    if len(set(names)) < len(paths):
        raise typer.BadParameter("compare: expected runs that differ in path and label, got one of them twice")
    return dict(zip(names, paths, strict=True))


def _watch(wanted: _Wanted, every: float, console: Console, errors: Console) -> int:
    """Pages of a run that goes on; the last one no longer loads itself again. 0: Ctrl-C is a fine end."""
    from rredcot_plugin.report.read_corpus import read_corpus
    from rredcot_plugin.report.report_page import render_report
    from rredcot_plugin.report.watch import watch

    page = wanted.page
    assert page is not None

    def make(reload: float | None = every) -> None:
        try:
            corpus = read_corpus(wanted.paths, **wanted.bounds)
            _write(page, render_report(corpus, _curves(wanted.tensorboard), wanted.title, wanted.notes, reload))
        except (ValueError, OSError) as error:
            errors.print(Text(_reason(error)), soft_wrap=True)
            return
        said = f"{time.strftime('%H:%M:%S')}  {shown_of(corpus)}"
        console.print(Text(said if reload else f"stopped; {shown_of(corpus)}"), soft_wrap=True)

    console.print(
        Text(f"{page}: will be written again when the files change; press Ctrl-C to stop"), soft_wrap=True
    )
    if watch(wanted.paths, make, every):
        make(reload=None)
    return 0


def _check_page(page: Path | None, paths: Sequence[Path], force: bool) -> None:
    if page is None:
        return
    if any(page.resolve() == file.resolve() for path in paths for file in (path, *path.glob("*.jsonl"))):
        raise typer.BadParameter(f"out={page}: these are the rollouts themselves; use another file")
    check_is_file("out", page)
    if page.exists() and not force:
        raise typer.BadParameter(
            f"out={page}: in the way; use another file with --out, or --force to overwrite it"
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
        "groups (equal texts once); all numbers cover all of them"
    )


def _print(corpus: Corpus, curves: Sequence[Curve], notes: Sequence[str], worst: int, console: Console) -> None:
    from rredcot_plugin.report.terminal_report import render_corpus

    console.print(render_corpus(corpus, curves, notes, worst))


def _write(page: Path, content: str) -> None:
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(page) as part:
            part.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OSError(f"{why_not_written('out', page, error)} with --out") from error


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
