"""What people read: tables, what is against the method, the page, the picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

from learn.curves import Curves
from learn.schedule import Pair, Tuned
from learn.statistics import mean_band
from learn.summary import BASE, CONTROLS, OURS, Found, Summary, clocks_agree, shown

QUALITY = {
    "final_accuracy": "final accuracy",
    "final_minus_grpo": "minus GRPO's",
    "area": "mean accuracy on the way",
    "area_minus_grpo": "minus GRPO's on the way",
    "final_all_right": "all steps right",
    "final_lucky": "rewarded, a step wrong",
    "sd_reward": "SD of rewards",
    "sd_grad_norm": "SD of gradient norms",
}
COST = {
    "steps_to_grpo_final": "steps to GRPO's final",
    "seconds_to_grpo_final": "seconds to it",
    "seconds_to_mc_grpo_final": "seconds to MC-GRPO's final",
    "accuracy_at_grpo_seconds": "accuracy at GRPO's seconds",
    "seconds": "seconds a run",
    "generated_tokens": "tokens a run",
}
ON_THE_PAGE = {
    "steps_to_grpo_final": "steps to GRPO's final accuracy, GRPO = 1",
    "final_accuracy": "final accuracy",
    "final_minus_grpo": "minus GRPO's, equal seeds",
}
OVERALL = {
    "final_accuracy": "final accuracy",
    "final_better_than_grpo": "P(better than GRPO) at the end",
    "area": "mean accuracy on the way",
    "area_better_than_grpo": "P(better than GRPO) on the way",
}


def make_tables(found: Found, summary: Summary, tuned: Mapping[Pair, Tuned]) -> str:
    """Markdown: over all families, then two tables for each."""
    parts = []
    common = [
        name for name in dict.fromkeys(n for s in found.values() for n in s) if f"all/{name}/area" in summary
    ]
    if common:
        rows = [[name, *(shown(summary[f"all/{name}/{key}"]) for key in OVERALL)] for name in common]
        parts += [f"**All families** ({', '.join(found)})", _table(["system", *OVERALL.values()], rows)]
    for family, systems in found.items():
        quality, cost = [], []
        for name, curves in systems.items():
            rate = tuned[family, name].rate
            quality.append([name, f"{rate:g}", _runs(curves), *_cells(summary, f"{family}/{name}", QUALITY)])
            cost.append([name, *_cells(summary, f"{family}/{name}", COST)])
        parts += [f"**{family}**", _table(["system", "rate", "runs", *QUALITY.values()], quality)]
        parts += [_table(["system", *COST.values()], cost)]
    return "\n\n".join(parts)


def page_tables(found: Found, summary: Summary, tuned: Mapping[Pair, Tuned]) -> str:
    """Markdown for the page: one table per family; what `make_tables` has beyond it is in the result file."""
    parts = []
    for family, systems in found.items():
        rows = [
            [name, _runs(curves), *_cells(summary, f"{family}/{name}", ON_THE_PAGE)]
            for name, curves in systems.items()
        ]
        parts += [f"**`{family}`**", _table(["system", "seeds", *ON_THE_PAGE.values()], rows)]
    return "\n\n".join(parts)


def _cells(summary: Summary, start: str, names: Mapping[str, str]) -> list[str]:
    entries = {name: summary.get(f"{start}/{name}") for name in names}
    digits = {"seconds": 0, "generated_tokens": 0, "final_minus_grpo": 3, "area_minus_grpo": 3}
    return ["–" if entry is None else shown(entry, digits.get(name, 2)) for name, entry in entries.items()]


def _runs(curves: Curves) -> str:
    return f"{curves.runs}" if not curves.reasons else f"{curves.runs}, **{len(curves.reasons)} failed**"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def objections(found: Found, summary: Summary, tuned: Mapping[Pair, Tuned]) -> list[str]:
    """What speaks against the default, against a control, or against the numbers themselves."""
    lines = []
    for family, systems in found.items():
        lines += _better_than_ours(family, systems, summary)
        lines += _other_clocks(family, systems)
        for name, curves in systems.items():
            lines += [
                f"{family} {name}: a run failed ({reason}); no mean includes it" for reason in curves.reasons
            ]
            choice = tuned[family, name]
            if choice.at_edge:
                lines.append(f"{family} {name}: the chosen rate {choice.rate:g} is at the edge of the grid")
            if choice.failed:
                lines.append(f"{family} {name}: {choice.failed} tuning runs failed and counted as accuracy 0")
    return lines


def _other_clocks(family: str, systems: Mapping[str, Curves]) -> list[str]:
    if BASE not in systems:
        return []
    names = [name for name, curves in systems.items() if not clocks_agree(curves, systems[BASE])]
    if not names:
        return []
    return [f"{family}: {', '.join(names)} ran on another processor than GRPO, so no seconds are compared"]


def _better_than_ours(family: str, systems: Mapping[str, Curves], summary: Summary) -> list[str]:
    if OURS not in systems:
        return []
    lines = []
    for measure in ("final_accuracy", "area"):
        ours = summary[f"{family}/{OURS}/{measure}"]
        above = [
            f"{name} {shown(entry)}"
            for name in systems
            if name != OURS and (entry := summary[f"{family}/{name}/{measure}"])["value"] >= ours["value"]
        ]
        if above:
            lines.append(f"{family}: {measure} of {OURS} is {shown(ours)}, not below it are {'; '.join(above)}")
        for control in set(CONTROLS) & set(systems):
            entry = summary[f"{family}/{control}/{measure}"]
            if BASE in systems and entry["value"] >= summary[f"{family}/{BASE}/{measure}"]["value"]:
                lines.append(f"{family}: {control} has {measure} {shown(entry)}, not below GRPO")
    return lines


def split_page(path: Path, name: str = "learning") -> tuple[str, str]:
    """What stands before and after the marks of a part; ValueError if there is no page, or no marks in it."""
    page = path.read_text() if path.is_file() else ""
    begin, end = _marks(name)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(
            f"--page {path}: no line {begin!r} followed by {end!r}; add both where tables should stand"
        )
    return before, after


def fill_page(path: Path, text: str, name: str = "learning") -> None:
    """Put a text between the marks of a part of the page."""
    before, after = split_page(path, name)
    begin, end = _marks(name)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
    print(f"written: {path}")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- {name}: end -->"


def draw(output: Path, found: Found) -> None:
    """A row per family: mean held-out accuracy over steps, seconds and generated tokens, with 95% intervals; over seconds
    only what ran on GRPO's kind of processor."""
    on_gpu = any(
        "NVIDIA" in cpu for systems in found.values() for curves in systems.values() for cpu in curves.cpus
    )
    clock = "seconds of a shared GPU" if on_gpu else "seconds of one core"
    axes_names = {"step": "steps", "seconds": clock, "tokens": "generated tokens"}
    names = list(dict.fromkeys(name for systems in found.values() for name in systems))
    figure, axes = plt.subplots(
        len(found), 3, figsize=(14, 3.6 * len(found)), squeeze=False, sharey="row", layout="constrained"
    )
    for row, (family, systems) in zip(axes, found.items(), strict=True):
        for axis, (spent, label) in zip(row, axes_names.items(), strict=True):
            for name, curves in systems.items():
                if spent != "seconds" or clocks_agree(curves, systems.get(BASE, curves)):
                    _line(axis, curves, spent, name, names.index(name))
            axis.set_xlabel(label)
            axis.set_title(family)
            axis.grid(color="0.92")
        row[0].set_ylabel("held-out accuracy, temperature 1")
        row[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    lines = {line.get_label(): line for axis in axes[:, 0] for line in axis.get_legend_handles_labels()[0]}
    figure.legend([lines[name] for name in names], names, loc="outside lower center", ncols=5, fontsize=9)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    plt.close(figure)
    print(f"written: {output}")


def _line(axis: Any, curves: Curves, spent: str, name: str, number: int) -> None:
    x = curves.dates(spent, curves.everyone)
    style = "--" if name in CONTROLS else "-"
    axis.plot(x, curves.curve(curves.everyone), style, color=f"C{number}", label=name, linewidth=1.5)
    if curves.runs > 1:
        low, high = mean_band(curves.each)
        axis.fill_between(x, low, high, color=f"C{number}", alpha=0.12, linewidth=0)
