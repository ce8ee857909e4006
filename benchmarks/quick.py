"""The regression gate: is what the committed results say still so? A few fast checks, each against a named entry.

    make bench-quick
    python benchmarks/quick.py --only probes gradient
    python benchmarks/quick.py --output outputs/quick.json

results        every file of benchmarks/results is whole
probes         cached, packed and batched probes agree, and read as many tokens as the floor says
gradient       tabular_gradient.py on its first policies: no bias at λ = 1, every row comes out again
returns        return_equivalence.py on its first policies: Σ r = R, the true gradient at λ = 1, the same regrets
overhead       log-prob pass with probes over the plain one
assign_credit  credit over the plain pass, and with values or proposals over without
segmenters     each segmenter over the mean of all
values         values of the demo's reasoner again, against the committed Monte-Carlo values

Verdicts: ``same``, ``better``, ``worse (noise)``, ``FAR OUTSIDE``, ``WRONG``, ``no committed number``. FAR OUTSIDE and
WRONG fail the gate. Times are CPU seconds as ratios within one run; one that is far outside is measured once more, and
the second measurement counts. A check that cannot be done is WRONG with its error, never left out. Committed results are
read, never written; every run measures everything anew, since it is the present code that is judged. Seeds: 0 for
models, traces and segmenters; policies and the reasoner's rollouts have those of the committed files.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from probe_passes import SEED
from quick_checks.committed import Committed, Interval
from quick_checks.exactness import POLICIES, check_gradient, check_probes, check_results, check_returns
from quick_checks.quality import check_values
from quick_checks.speed import check_assign_credit, check_overhead, check_segmenters
from quick_checks.verdicts import BETTER, FAILING, FAR, FAR_OUTSIDE, NOISE, NOTHING, SAME, WORSE, WRONG, Finding
from record import write_record
from rich.console import Console
from rich.table import Table
from rich.text import Text

RESULTS = Path(__file__).parent / "results"
OUTPUT = Path(__file__).parent.parent / "outputs" / "quick.json"
Check = Callable[[Committed], list[Finding]]
CHECKS: dict[str, Check] = {
    "results": check_results,
    "probes": check_probes,
    "gradient": check_gradient,
    "returns": check_returns,
    "overhead": check_overhead,
    "assign_credit": check_assign_credit,
    "segmenters": check_segmenters,
    "values": check_values,
}
STYLES = {
    SAME: "green",
    BETTER: "green",
    WORSE: "yellow",
    NOTHING: "yellow",
    FAR_OUTSIDE: "bold red",
    WRONG: "bold red",
}
UNUSABLE = (AssertionError, LookupError, TypeError, ValueError)
"""What a check raises on wrong numbers or a result of another form; anything else stops the gate with its traceback."""


def run_check(name: str, check: Check, committed: Committed) -> list[Finding]:
    """The check's findings; what is far outside is measured once more, as a busy machine may have been the cause."""
    try:
        found = check(committed)
        if not any(finding.verdict == FAR_OUTSIDE for finding in found):
            return found
        first = {finding.name + finding.source: finding for finding in found}
        return [_second(first[finding.name + finding.source], finding) for finding in check(committed)]
    except UNUSABLE as error:
        return [Finding(name, WRONG, "", note=f"{type(error).__name__}: {error}")]


def _second(first: Finding, second: Finding) -> Finding:
    """The second measurement where the first was far outside, else the first."""
    if first.verdict != FAR_OUTSIDE or first.measured is None:
        return first
    return replace(
        second, note=f"second measurement, the first was {first.measured['value']:.4g} {second.note}".strip()
    )


def shown(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    value, low, high = (f"{interval[end]:.3g}" for end in ("value", "low", "high"))
    return value if low == high else f"{value} [{low}, {high}]"


def make_table(findings: dict[str, list[Finding]]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for column in ("check", "what", "compared with", "measured", "committed", "allowed", "verdict"):
        table.add_column(column, overflow="fold", no_wrap=column in ("check", "measured", "committed"))
    for name, rows in findings.items():
        for number, row in enumerate(rows):
            verdict = Text(row.verdict, style=STYLES[row.verdict])
            cells = (row.name, row.source, shown(row.measured), shown(row.committed), row.allowed)
            table.add_row("" if number else name, *map(Text, cells), verdict)
    return table


def report(console: Console, findings: dict[str, list[Finding]], seconds: float) -> bool:
    """Print everything; whether the gate is passed."""
    console.print(make_table(findings))
    rows = [(name, row) for name, own in findings.items() for row in own]
    for name, row in rows:
        if row.note and row.verdict not in (SAME, BETTER):
            line = f"{name}, {row.name}: {row.verdict}: {row.note}"
            console.print(Text(line, style=STYLES[row.verdict]), soft_wrap=True)
    counts = {verdict: sum(row.verdict == verdict for _, row in rows) for verdict in STYLES}
    passed = not any(counts[verdict] for verdict in FAILING)
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    end = "passed" if passed else "FAILED"
    console.print(Text(f"{end} in {seconds:.0f} s: {text}", style="bold green" if passed else "bold red"))
    return passed


def write(output: Path, findings: dict[str, list[Finding]], seconds: float) -> None:
    summary = {
        f"{name}/{row.name}": row.measured
        for name, rows in findings.items()
        for row in rows
        if row.measured is not None
    }
    settings = {"noise": NOISE, "far": FAR, "policies": POLICIES, "seconds": seconds}
    raw = {name: [asdict(row) for row in rows] for name, rows in findings.items()}
    write_record(output, settings, summary, raw, seeds=[SEED], shown=())


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), metavar="NAME", help="these checks alone")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="committed results (default benchmarks/results)"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="where the JSON goes (default outputs/quick.json)"
    )
    args = parser.parse_args(arguments)
    if not args.results.is_dir():
        parser.error(f"--results {args.results}: expected a folder of results")
    if args.output.resolve().parent in (RESULTS.resolve(), args.results.resolve()):
        parser.error(
            f"--output {args.output}: committed results are compared with, not written; use another folder"
        )
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    torch.set_num_threads(1)
    console = Console(highlight=False, width=None if os.isatty(1) else 160)
    committed, begin = Committed(args.results), time.perf_counter()
    findings: dict[str, list[Finding]] = {}
    try:
        for name in args.only or CHECKS:
            with console.status(name):
                findings[name] = run_check(name, CHECKS[name], committed)
    finally:  # what stops the gate leaves what was found before
        seconds = time.perf_counter() - begin
        write(args.output, findings, seconds)
    return 0 if report(console, findings, seconds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
