"""The table, the headline and the file of what `run.py` measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from cells import Cell
from record import Summary, with_interval

from rredcot_plugin.adapter.whole_file import whole_file

TARGET = 1.08
TARGET_SIZE = (16384, 64)


def over_plain(cell: Cell, name: str) -> list[float]:
    """Seconds over the plain pass's, round by round."""
    seconds = cell["seconds"]
    return [probed / plain for probed, plain in zip(seconds.get(name, []), seconds["plain"], strict=False)]


def make_table(cells: dict[str, Cell], passes: list[str]) -> str:
    """Markdown: sizes, plain pass, floor, each pass over plain, peak memory; then the errors of the check."""
    timed = [cell for cell in cells.values() if cell["kind"] == "time"]
    checked = [cell for cell in cells.values() if cell["kind"] == "check"]
    names = ["model", "T", "K", "A", "plain, ms", "floor", *passes, "peak GiB: plain", *passes]
    errors = ["model", "dtype", "allowed", *passes]
    return "\n".join(
        [
            line(names),
            line(["---"] * len(names)),
            *(line(time_row(cell, passes)) for cell in timed),
            "",
            "Largest error of a probe's summed log-prob against an independent float32 forward:",
            "",
            line(errors),
            line(["---"] * len(errors)),
            *(line(check_row(cell, dtype, passes)) for cell in checked for dtype in ("float32", "bfloat16")),
        ]
    )


def line(entries: list[str]) -> str:
    return "| " + " | ".join(entries) + " |"


def time_row(cell: Cell, passes: list[str]) -> list[str]:
    sizes = [cell["shape"], *(str(cell[name]) for name in ("tokens", "probes", "probe_tokens"))]
    milliseconds = [1000 * value for value in cell["seconds"]["plain"]]
    ratios = [spread(over_plain(cell, name), 3) if name not in cell["failed"] else "failed" for name in passes]
    peaks = [
        f"{median(cell['peak_gib'][name]):.2f}" if cell["peak_gib"][name] else "–" for name in ["plain", *passes]
    ]
    return [*sizes, spread(milliseconds, 1), f"{cell['floor']:.3f}", *ratios, *peaks]


def check_row(cell: Cell, dtype: str, passes: list[str]) -> list[str]:
    found = cell["errors"][dtype]
    errors = [found[name] if isinstance(found[name], str) else f"{found[name]:.1e}" for name in passes]
    return [cell["shape"], dtype, f"{cell['limits'][dtype]:.1e}", *errors]


def spread(values: list[float], digits: int) -> str:
    """Median and interval; a dash for nothing."""
    if not values:
        return "–"
    found = with_interval(values)
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def summarize(cells: dict[str, Cell]) -> Summary:
    """`<model>/<pass>_over_plain` at the size of the target."""
    return {
        f"{cell['shape']}/{name}_over_plain": with_interval(over_plain(cell, name))
        for cell in cells.values()
        if cell["kind"] == "time" and (cell["tokens"], cell["probes"]) == TARGET_SIZE
        for name in cell["seconds"]
        if name != "plain" and over_plain(cell, name)
    }


def headline(cells: dict[str, Cell], passes: list[str]) -> str:
    """One line a model: does a pass reach the target, and which."""
    summary, lines = summarize(cells), []
    for shape in dict.fromkeys(name.split("/")[0] for name in summary):
        found = {
            name: summary[f"{shape}/{name}_over_plain"]
            for name in passes
            if f"{shape}/{name}_over_plain" in summary
        }
        best = min(found, key=lambda name: found[name]["value"])
        verdict = "met" if found[best]["value"] <= TARGET else "missed"
        lines.append(f"{shape}: {best} {found[best]['value']:.3f} x plain, target {TARGET}: {verdict}")
    return "\n".join(lines) or f"the size of the target, T={TARGET_SIZE[0]} K={TARGET_SIZE[1]}, was not measured"


def write_results(
    path: Path, machine: dict[str, Any], settings: dict[str, Any], cells: dict[str, Cell], commit: str | None
) -> None:
    """In the form of the other results, with this machine's GPU."""
    record = {
        "benchmark": path.stem,
        "command": " ".join(["python", "benchmarks/gpu/run.py", *sys.argv[1:]]),
        "commit": commit,
        "machine": machine,
        "settings": settings,
        "summary": summarize(cells),
        "raw": {"cells": cells},
    }
    with whole_file(path) as part:
        part.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {path}")
