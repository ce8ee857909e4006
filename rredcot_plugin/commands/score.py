"""`rredcot score`: credit for rollouts that already exist, with any causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from rredcot_plugin.commands import score_options as opts
from rredcot_plugin.commands.needs import require
from rredcot_plugin.offline.hub import first_line
from rredcot_plugin.offline.out_file import SCORED
from rredcot_plugin.written import read_pairs, read_value

if TYPE_CHECKING:
    from rredcot_plugin.config import RRedCoTConfig
    from rredcot_plugin.offline.json_lines import BadLine
    from rredcot_plugin.offline.run import Progress, ScoreResult, ScoreSettings
    from rredcot_plugin.report.traces import Trace

NEEDS = ("transformers", "yaml")
SHOWN = 5
"""Broken lines that are told one by one."""

NO_PROPOSAL = "rredcot/fallback/no_proposal/mean"
NOTHING_PROBED = (
    "no trace had an answer to probe, so every value comes from its group alone: give ground_truth (or, for "
    "value_estimator=reference, references), or use value_estimator=confidence"
)

SHOWN_METRICS = {
    "rredcot/probes/per_trace/mean": "probes per trace",
    "rredcot/fallback/ground_truth/mean": "traces probed with the ground truth",
    NO_PROPOSAL: "traces with nothing to probe",
    "rredcot/fallback/uncalibrated/mean": "chunks without a calibration",
    "rredcot/value/brier/mean": "Brier score of the values",
}


def score(
    rollouts: opts.Rollouts,
    model: opts.Model,
    out: opts.Out = None,
    options: opts.Options = None,
    config: opts.Config = None,
    device: opts.Device = "auto",
    dtype: opts.Dtype = "auto",
    temperature: opts.Temperature = 1.0,
    prompts: opts.Prompts = "auto",
    chat_template: opts.ChatTemplate = None,
    groups_per_chunk: opts.GroupsPerChunk = 16,
    batch_tokens: opts.BatchTokens = 16384,
    trust_remote_code: opts.TrustRemoteCode = False,
    force: opts.Force = False,
) -> None:
    """Segment rollouts and redistribute their rewards, without training; run it again to continue where it stopped."""
    require(NEEDS, "score", code=2)
    from rredcot_plugin.offline.loading import Placement
    from rredcot_plugin.offline.output import OutputExistsError
    from rredcot_plugin.offline.prompts import HOW
    from rredcot_plugin.offline.run import ScoreSettings

    try:
        if prompts not in HOW:
            raise ValueError(f"prompts={prompts}: expected one of {', '.join(HOW)}")
        Placement.choose(device, dtype)
        settings = ScoreSettings(
            rollouts, model, out or default_out(rollouts), read_options(config, options or []),
            device, dtype, temperature, prompts, chat_template, groups_per_chunk, batch_tokens, trust_remote_code, force,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        result = _run(settings, errors)
    except OutputExistsError as error:
        errors.print(Text(str(error)), soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        kept = f"what is finished is in {settings.out}" if settings.out.exists() else "nothing was finished yet"
        errors.print(Text(f"stopped: {kept}; run the same command again to continue from there"), soft_wrap=True)
        raise typer.Exit(130) from error
    except (ValueError, OSError, RuntimeError) as error:
        errors.print(Text(_reason(model, error)), soft_wrap=True)
        raise typer.Exit(1) from error
    _tell_result(settings, result, console)
    tell_left_out(rollouts, result.left_out, errors)
    if result.left_out:
        raise typer.Exit(1)


def default_out(rollouts: Path) -> Path:
    """Beside the rollouts; a folder, which reading will refuse, may have no name to add to, such as "."."""
    return rollouts.with_suffix(SCORED) if rollouts.name else rollouts / SCORED


def _reason(model: str, error: Exception) -> str:
    if not isinstance(error, RuntimeError):
        return str(error)
    hint = "; a smaller --batch-tokens needs less memory" if "out of memory" in str(error) else ""
    return f"model={model}: {first_line(error)}{hint}"


def read_options(file: Path | None, pairs: Sequence[str]) -> RRedCoTConfig:
    """Options of a YAML file, then ``key=value`` pairs with values in YAML; a dot in a key opens a mapping.

    Raises:
        ValueError: a file or a pair that cannot be read, an unknown key, or a value that is not allowed.
    """
    import yaml

    from rredcot_plugin.config import RRedCoTConfig

    found: Any = {}
    try:
        if file is not None:
            found = read_value(file.read_text("utf-8")) or {}
        if not isinstance(found, dict):
            raise ValueError(f"config={file}: expected a mapping of options, got {type(found).__name__}")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"options cannot be read: {' '.join(str(error).split())}") from error
    return RRedCoTConfig.from_mapping(read_pairs(pairs, found))


def _run(settings: ScoreSettings, console: Console) -> ScoreResult:
    from transformers.utils import logging as transformers_logging

    from rredcot_plugin.offline.run import run_score

    transformers_logging.disable_progress_bar()
    with _bar(console) as show:
        return run_score(settings, lambda sentence: console.print(Text(sentence)), show)


@contextmanager
def _bar(console: Console) -> Iterator[Any]:
    """A progress bar over rollouts, on the stream for errors, so that the other one stays clean."""
    columns = (
        TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("scoring", total=None)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        yield show


def _tell_result(settings: ScoreSettings, result: ScoreResult, console: Console) -> None:
    from rredcot_plugin.report.findings import findings
    from rredcot_plugin.report.statistics import Statistics
    from rredcot_plugin.report.traces import read_dumps
    from rredcot_plugin.values.base import calibrates

    out = settings.out
    if not out.stat().st_size:
        console.print("no rollout could be scored", style="bold red")
        return
    if not result.chunks:
        console.print("nothing was left to score")
    traces = read_dumps(out)
    console.print(summary_table(traces, result.metrics))
    if result.metrics.get(NO_PROPOSAL) == 1.0:
        console.print(Text(f"warning: {NOTHING_PROBED}", style="yellow"), soft_wrap=True)
    numbers = Statistics.of(traces)
    raw, fitted = settings.config.calibrate == "none", calibrates(settings.config.build_value_estimator())
    for warning in findings(numbers.steps(), numbers.bias(), calibrated=not raw, fitted=fitted):
        console.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    console.print(Text(str(out)), soft_wrap=True)


def summary_table(traces: Sequence[Trace], metrics: dict[str, float]) -> Table:
    """Counts and means over all scored traces, then a few metrics of this run."""
    from rredcot_plugin.offline.trace_stats import all_traits, group_of
    from rredcot_plugin.report.text import precise

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rollouts", str(len(traces)))
    groups = [group_of(trace) for trace in traces]
    table.add_row("groups", str(len(set(groups))))
    traits = all_traits(traces, groups)
    for name, title in (
        ("segments", "segments per trace"),
        ("reward", "mean reward"),
        ("first", "mean value of the prompt"),
        ("last", "mean value before the answer"),
        ("answer_share", "share of credit at the answer"),
    ):
        known = [own[name] for own in traits if own[name] == own[name]]
        table.add_row(title, precise(fmean(known)) if known else "n/a")
    for name, title in SHOWN_METRICS.items():
        if name in metrics:
            table.add_row(title, precise(metrics[name]))
    return table


def tell_left_out(path: Path, bad: Sequence[BadLine], console: Console) -> None:
    """Name the lines that were left out, the first few one by one."""
    from rredcot_plugin.report.text import visible

    for line in bad[:SHOWN]:
        console.print(Text(f"{path}, line {line.number}: left out: {visible(line.reason)}"), soft_wrap=True)
    if len(bad) > SHOWN:
        numbers = ", ".join(str(line.number) for line in bad[SHOWN : 10 * SHOWN])
        more = " …" if len(bad) > 10 * SHOWN else ""
        console.print(f"and {len(bad) - SHOWN} more lines: {numbers}{more}", soft_wrap=True)
