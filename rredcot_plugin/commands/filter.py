"""`rredcot filter`: keep the scored rollouts whose state values meet a condition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.adapter.whole_file import whole_file
from rredcot_plugin.commands.score import tell_left_out
from rredcot_plugin.commands.writing import check_is_file, written

if TYPE_CHECKING:
    from rredcot_plugin.offline.conditions import Condition, Selection
    from rredcot_plugin.offline.json_lines import BadLine
    from rredcot_plugin.report.traces import Trace

Scored = tuple[dict[str, Any], "Trace"]
Group = tuple[int, int, str]
"""Number of the file, step and uid."""


def filter_rollouts(
    rollouts: Annotated[
        list[Path] | None, typer.Argument(help="Files that rredcot score or algorithm.rredcot.dump_dir wrote.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="A condition, or the name of a preset; if several are given, all must hold."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Keep traces that meet it (trace), or groups in which every trace (group) or one trace (any) does."
        ),
    ] = None,
    invert: Annotated[bool, typer.Option("--invert", help="Keep what does not meet the conditions.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the kept lines; without it, only count.")
    ] = None,
    preview: Annotated[int, typer.Option(min=0, help="Print this many of the kept traces.")] = 0,
    names: Annotated[
        bool, typer.Option("--names", help="List names and presets, and exit.", is_eager=True)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Filter scored rollouts by their state values, with counts and a preview."""
    from rredcot_plugin.offline.conditions import read_condition, select

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    if names:
        console.print(names_table())
        return
    if not rollouts:
        raise typer.BadParameter("rollouts: expected at least one file that rredcot score wrote")
    if not where:
        raise typer.BadParameter(
            "where: expected a condition, such as --where 'peak > 0.7'; --names lists the names"
        )
    try:
        conditions = [read_condition(text, by) for text in where]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _check_out(out, rollouts, force)
    try:
        scored, groups, bad = read_scored(rollouts)
    except (ValueError, OSError) as error:
        errors.print(Text(str(error)), soft_wrap=True)
        raise typer.Exit(1) from error
    traces = [trace for _, trace in scored]
    selection = select(traces, groups, conditions, invert)
    kept = list(compress(scored, selection.kept))
    _preview([trace for _, trace in kept[:preview]], console)
    console.print(counts_table(conditions, selection, invert))
    if out is not None:
        with written("out", out):
            write_records(out, [record for record, _ in kept])
        console.print(Text(str(out)), soft_wrap=True)
    for path, lines in bad.items():
        tell_left_out(path, lines, errors)
    if any(bad.values()):
        raise typer.Exit(1)


def _check_out(out: Path | None, rollouts: Sequence[Path], force: bool) -> None:
    if out is None:
        return
    inputs = [file for path in rollouts for file in (path, *path.glob("*.jsonl"))]
    if any(out.resolve() == file.resolve() for file in inputs):
        raise typer.BadParameter(f"out={out}: these are the rollouts themselves; use another file")
    check_is_file("out", out)
    if out.exists() and not force:
        raise typer.BadParameter(f"out={out}: in the way; use another file, or --force to overwrite it")


def read_scored(paths: Sequence[Path]) -> tuple[list[Scored], list[Group], dict[Path, list[BadLine]]]:
    """Records with their traces, and the group of each, of all files (of a folder: its ``*.jsonl``, and not what stands there scored too),
    each once, and each file's broken lines. Uids are those of one file: rollouts of another one are another group.

    Raises:
        ValueError: a file that was named of which nothing can be read, or a folder where that holds for every file.
    """
    from rredcot_plugin.offline.json_lines import read_lines, sort_lines
    from rredcot_plugin.offline.trace_stats import group_of
    from rredcot_plugin.report.read_corpus import find_files

    scored: list[Scored] = []
    groups: list[Group] = []
    bad: dict[Path, list[BadLine]] = {}
    files = find_files(paths)
    for number, file in enumerate(files):
        read = read_lines if file.is_named else sort_lines
        good, bad[file.path] = read(file.path, _parse)
        scored += good
        groups += [(number, *group_of(trace)) for _, trace in good]
    if not scored:
        read_lines(files[0].path, _parse)  # says why
    return scored, groups, bad


def _parse(_: int, record: Mapping[str, Any]) -> Scored:
    from rredcot_plugin.report.traces import read_trace

    if "segments" not in record:
        raise ValueError(f"no scored rollout (missing 'segments'; found: {', '.join(map(repr, record)) or 'none'}): "
                         "run rredcot score on the file first")  # fmt: skip
    return dict(record), read_trace(record)


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON lines, in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part, part.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _preview(traces: Sequence[Trace], console: Console) -> None:
    from rredcot_plugin.report.colour import credit_scale
    from rredcot_plugin.report.terminal import render_trace

    for trace in traces:
        console.print(render_trace(trace, credit_scale(traces)))
        console.print()


def counts_table(conditions: Sequence[Condition], selection: Selection, invert: bool) -> Table:
    """How many traces meet each condition alone, and how many are kept and dropped by all together."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("condition")
    table.add_column("by")
    table.add_column("traces", justify="right")
    total = len(selection.kept)
    for condition, met in zip(conditions, selection.met, strict=True):
        table.add_row(Text(condition.text), condition.by, f"{met} of {total}")
    kept = sum(selection.kept)
    if selection.unknown:
        table.add_row("unknown numbers, dropped", "", str(selection.unknown))
    table.add_row("kept (inverted)" if invert else "kept", "", f"{kept} of {total}")
    table.add_row("dropped", "", str(total - kept))
    return table


def names_table() -> Table:
    """What may stand in a condition."""
    from rredcot_plugin.offline.conditions import PRESETS
    from rredcot_plugin.offline.trace_stats import TRAITS

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, meaning in TRAITS.items():
        table.add_row(name, Text(meaning))
    for name, (condition, by) in PRESETS.items():
        table.add_row(name, Text(f"{condition}   (by {by})"))
    return table
