"""Summary, tables and picture of the cells that `overhead.py` measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from cells import Cell
from record import Summary, with_interval

Interval = dict[str, float]
BACKENDS = ("cached", "packed", "batched")
MARKS = ("<!-- overhead: written by benchmarks/overhead.py -->", "<!-- overhead: end -->")
TARGET = 1.10


def ratios(cell: Cell, name: str, clock: str = "wall") -> list[float]:
    """Seconds of the pass over the plain pass's of the same round."""
    seconds = cell["seconds"][clock]
    return [probed / plain for probed, plain in zip(seconds.get(name, []), seconds["plain"], strict=False)]


def of_kind(cells: Sequence[Cell], kind: str, main: tuple[int, int, int] | None = None) -> list[Cell]:
    """Cells of a kind; with `main`, only those with its K and A."""
    return [
        cell
        for cell in cells
        if cell["kind"] == kind and (main is None or (cell["probes"], cell["probe_tokens"]) == main[1:])
    ]


def summarize(cells: Sequence[Cell], main: tuple[int, int, int]) -> Summary:
    """The headline numbers of `overhead.py`."""
    along_tokens = of_kind(cells, "time", main)
    [headline] = [cell for cell in along_tokens if cell["tokens"] == main[0]]
    summary: Summary = {}
    for backend in ("cached", "packed"):
        prefix = "probe" if backend == "cached" else backend
        for clock, suffix in (("wall", ""), ("cpu", "_cpu")):
            over = [ratio / headline["floor"] for ratio in ratios(headline, backend, clock)]
            summary[f"{prefix}_overhead_vs_floor{suffix}"] = with_interval(over)
    for name, suffix in (("cached", ""), ("plain", "_plain")):
        summary[f"exponent_tokens{suffix}"] = fitted_exponent(along_tokens, "tokens", name)
        summary[f"exponent_group{suffix}"] = fitted_exponent(of_kind(cells, "group"), "traces", name)
        summary[f"exponent_memory{suffix}"] = memory_exponent(of_kind(cells, "memory"), name)
    return summary


def fitted_exponent(cells: Sequence[Cell], size: str, name: str, draws: int = 2000) -> Interval:
    """e of median seconds ~ size^e by least squares in logarithms; interval: rounds drawn anew, 95%."""
    x = np.log([cell[size] for cell in cells])
    rounds = [np.array(cell["seconds"]["wall"][name]) for cell in cells]
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(row, size=(draws, len(row))), axis=1) for row in rounds]
    slopes = np.polyfit(x, np.log(drawn), 1)[0]
    low, high = np.quantile(slopes, [0.025, 0.975])
    value = np.polyfit(x, np.log([np.median(row) for row in rounds]), 1)[0]
    return {"value": float(value), "low": float(low), "high": float(high)}


def memory_exponent(cells: Sequence[Cell], name: str) -> Interval:
    """e of peak growth ~ T^e by least squares in logarithms; low and high: of neighbouring pairs of T."""
    x = np.log([cell["tokens"] for cell in cells])
    y = np.log([max(cell["mib"][name], 1.0) for cell in cells])
    pairs = np.diff(y) / np.diff(x)
    return {"value": float(np.polyfit(x, y, 1)[0]), "low": float(min(pairs)), "high": float(max(pairs))}


def read_step_share(path: Path) -> tuple[Interval, str]:
    """The share that `step_share.py` measured, and where it is from; ValueError if the file does not have it."""
    try:
        record = json.loads(path.read_text())
        share = {key: float(record["summary"]["step_share"][key]) for key in ("value", "low", "high")}
        return share, f"{path.name} of commit {record['commit']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: no step_share here ({error!r}); measure it: rredcot demo --out demo_output && "
            "python benchmarks/step_share.py demo_output/rredcot/tensorboard"
        ) from error


def make_tables(cells: Sequence[Cell]) -> str:
    """Three Markdown tables: ratios with the floor beside them, groups, memory.

    Of times, every length of a probe at the longest trace, and every trace with probes of the middle length; the
    result file has the others.
    """
    times = of_kind(cells, "time")
    longest = max((cell["tokens"] for cell in times), default=0)
    lengths = sorted({cell["probe_tokens"] for cell in times})
    middle = lengths[len(lengths) // 2] if lengths else 0
    shown = [cell for cell in times if cell["tokens"] == longest or cell["probe_tokens"] == middle]
    time_rows = [time_row(cell) for cell in shown]
    group_rows = [group_row(cell) for cell in of_kind(cells, "group")]
    memory_rows = [memory_row(cell) for cell in of_kind(cells, "memory")]
    return "\n".join(
        [
            "| T | K | A | plain, s | floor | cached | packed | batched | cached / floor |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *time_rows,
            "",
            "| group size | probes per trace | plain, s | floor | cached |",
            "| --- | --- | --- | --- | --- |",
            *group_rows,
            "",
            "| T | K | A | floor | plain, MiB | cached | packed |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *memory_rows,
        ]
    )


def spread(values: Sequence[float]) -> str:
    """Median and interval; a single value without one; a dash for none."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    found = with_interval(values)
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def time_row(cell: Cell) -> str:
    plain = median(cell["seconds"]["wall"]["plain"])
    over = [spread(ratios(cell, name)) for name in BACKENDS]
    vs_floor = spread([ratio / cell["floor"] for ratio in ratios(cell, "cached")])
    sizes = [str(cell[name]) for name in ("tokens", "probes", "probe_tokens")]
    return "| " + " | ".join([*sizes, f"{plain:.2f}", f"{cell['floor']:.2f}", *over, vs_floor]) + " |"


def group_row(cell: Cell) -> str:
    plain = median(cell["seconds"]["wall"]["plain"])
    over = spread(ratios(cell, "cached"))
    return f"| {cell['traces']} | {cell['probes']} | {plain:.2f} | {cell['floor']:.2f} | {over} |"


def memory_row(cell: Cell) -> str:
    sizes = [str(cell[name]) for name in ("tokens", "probes", "probe_tokens")]
    mib = [f"{cell['mib'][name]:.0f}" for name in ("plain", "cached", "packed")]
    return "| " + " | ".join([*sizes, f"{cell['floor']:.2f}", *mib]) + " |"


def draw_picture(cells: Sequence[Cell], main: tuple[int, int, int], path: Path) -> None:
    """Ratio to the floor over T for every (K, A) and backend, with the target, as PNG."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    shapes = sorted({(cell["probes"], cell["probe_tokens"]) for cell in of_kind(cells, "time")})
    for panel, backend in zip(axes, ("cached", "packed"), strict=True):
        for probes, probe_tokens in shapes:
            along = of_kind(cells, "time", (0, probes, probe_tokens))
            points = [with_interval([r / cell["floor"] for r in ratios(cell, backend)]) for cell in along]
            value = np.array([point["value"] for point in points])
            bars = [value - [point["low"] for point in points], [point["high"] for point in points] - value]
            wide = 2.2 if (probes, probe_tokens) == main[1:] else 1.0
            name = f"K={probes}, A={probe_tokens}"
            tokens = [cell["tokens"] for cell in along]
            panel.errorbar(tokens, value, yerr=bars, label=name, linewidth=wide, marker=".", capsize=2)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.axhline(TARGET, color="black", linewidth=0.8, linestyle=":")
        panel.set(title=backend, xlabel="tokens of the trace, T", xscale="log")
        panel.set_xticks(sorted({cell["tokens"] for cell in of_kind(cells, "time")}), minor=False)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.minorticks_off()
    axes[0].set_ylabel("time over plain pass, over the floor")
    axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"written: {path}")


def fill_page(path: Path, tables: str) -> None:
    """Put the tables between the marks of the page; ValueError if it has none."""
    page = path.read_text()
    begin, end = MARKS
    if begin not in page or end not in page.partition(begin)[2]:
        raise ValueError(f"{path}: no line {begin!r} followed by {end!r}; add both where the tables should stand")
    before, after = page.partition(begin)[0], page.partition(begin)[2].partition(end)[2]
    picture = "![Time over the plain pass, over the floor, by length of the trace](../images/overhead.png)"
    path.write_text(f"{before}{begin}\n\n{tables}\n\n{picture}\n\n{end}{after}")
    print(f"written: {path}")
