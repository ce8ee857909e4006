"""The two tables of the page, from the summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from estimators_table.batch import VERL
from estimators_table.ours import VARIANTS

Summary = Mapping[str, Mapping[str, float]]
MARKS = ("<!-- estimators: written by benchmarks/estimators.py -->", "<!-- estimators: end -->")
PICTURE = "![Angle between the expected and the true gradient, and signal over variance, of each estimator](../images/estimators.png)"
EXACT_SIZE, EXACT_DEGREES = 1e-6, 1e-4

LABELS = {
    "gae": "`gae`, exact values",
    "gae_zero_values": "`gae`, values 0",
    "grpo": "`grpo`",
    "grpo_no_std": "`grpo`, no std (Dr. GRPO)",
    "grpo_passk": "`grpo_passk`",
    "grpo_passk_no_std": "`grpo_passk`, no std",
    "otb_leave_one_out": "leave-one-out OTB (not in verl)",
    "rloo_token_mean": "`rloo`, token-mean",
    "rloo_seq_mean_token_mean": "`rloo`, seq-mean-token-mean",
    "rredcot_value": "rredcot, `baseline: value`",
    "rredcot_no_std": "rredcot, default baseline",
    "rredcot": "rredcot, default, `group_std`",
    "rredcot_trace": "rredcot, `baseline: trace`",
    "rredcot_trace_std": "rredcot, `trace`, `group_std`",
    "rredcot_token": "rredcot, `baseline: token`",
    "rredcot_token_std": "rredcot, `token`, `group_std`",
    "rredcot_none": "rredcot, `segmenter: none`",
}
REASONS = (
    {name: own.why for name, own in VERL.items()}
    | {name: why for name, (_, why) in VARIANTS.items()}
    | {"otb_leave_one_out": "verl's formula over the other rollouts alone"}
)


REPEATED = ("grpo", "rloo_token_mean")
"""Rows without news: 1 by definition, and equal to `rloo`."""


def page_tables(summary: Summary, sizes: Sequence[int], families: Sequence[str]) -> str:
    """Picture and tables, as they stand on the page."""
    names = [key.split("/")[1] for key in summary if key.startswith("size/") and key.endswith(f"/{sizes[0]}")]
    parts = [PICTURE, "## On policies that can be enumerated", enumerated_table(summary, names, sizes)]
    if families:
        start = f"{families[0]}/size/"
        methods = [key.removeprefix(start) for key in summary if key.startswith(start)]
        parts += ["## On tiny reasoners", families_table(summary, families, methods)]
    return "\n\n".join(parts)


def label(name: str) -> str:
    return LABELS.get(name, f"`{name}`")


def verdict(summary: Summary, name: str, sizes: Sequence[int]) -> str:
    """``yes``; ``direction``: all prompts and groups shrink by the same factor of N; ``no``."""
    size = [summary[f"size/{name}/{n}"] for n in sizes]
    angles = [summary[f"{key}/{name}/{n}"]["high"] for n in sizes for key in ("degrees", "batch_degrees")]
    if max(angles) > EXACT_DEGREES:
        return "no"
    exact = all(max(abs(entry["low"]), abs(entry["high"])) < EXACT_SIZE for entry in size)
    return "**yes**" if exact else "direction"


def enumerated_table(summary: Summary, names: Sequence[str], sizes: Sequence[int]) -> str:
    """Exact over all sizes of a group; the numbers are those of the largest."""
    largest = sizes[-1]
    header = [
        f"groups of {largest}",
        "exact",
        "size",
        "angle, worst prompt",
        "angle, batch of prompts",
        "worst prompt, `token-mean`",
        "signal / variance",
        "why",
    ]
    rows = []
    for name in names:
        cells = [label(name), verdict(summary, name, sizes)]
        cells.append(signed(summary[f"size/{name}/{largest}"]["value"]))
        cells.append(angle(summary[f"degrees/{name}/{largest}"]["high"]))
        cells.append(with_error(summary[f"batch_degrees/{name}/{largest}"]))
        cells.append(angle(summary[f"token_mean_degrees/{name}/{largest}"]["high"]))
        cells.append(f"{summary[f'batch_snr_vs_grpo/{name}/{largest}']['value']:.2f}")
        rows.append([*cells, REASONS[name]])
    return table(header, rows)


def families_table(summary: Summary, families: Sequence[str], names: Sequence[str]) -> str:
    """Signal over variance, and the cosine with g on the family where it is least; sizes are in the result file."""
    header = ["signal / variance, GRPO = 1", *(f"`{family}`" for family in families), "least cosine"]
    rows = []
    for name in names:
        if name in REPEATED:
            continue
        entries = [summary[f"{family}/snr_vs_grpo/{name}"] for family in families]
        cells = [f"{entry['value']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}]" for entry in entries]
        cosine = min(summary[f"{family}/cosine/{name}"]["value"] for family in families)
        rows.append([label(name), *cells, f"{cosine:.3f}"])
    return table(header, rows)


def signed(number: float) -> str:
    """A relative deviation; 0 where it is rounding of float32."""
    if abs(number) < EXACT_SIZE:
        return "0"
    return f"{round(number, 2) + 0.0:+.2f}".replace("-", "−")


def angle(degrees: float) -> str:
    if degrees < EXACT_DEGREES:
        return "0"
    return "<.1°" if degrees < 0.05 else f"{degrees:.1f}°" if degrees < 10 else f"{degrees:.0f}°"


def with_error(entry: Mapping[str, float]) -> str:
    """The angle; with its standard error where it comes from sampled batches."""
    error = (entry["high"] - entry["value"]) / 2
    return f"{entry['value']:.1f}° ± {error:.1f}°" if error > 0 else angle(entry["value"])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def split_page(path: Path) -> tuple[str, str]:
    """What stands before and after the marks.

    Raises:
        ValueError: a page without them.
    """
    page = path.read_text()
    begin, end = MARKS
    if begin not in page or end not in page.partition(begin)[2]:
        raise ValueError(f"{path}: no line {begin!r} followed by {end!r}; add both where the tables should stand")
    return page.partition(begin)[0], page.partition(begin)[2].partition(end)[2]


def fill_page(path: Path, tables: str) -> None:
    before, after = split_page(path)
    path.write_text(f"{before}{MARKS[0]}\n\n{tables}\n\n{MARKS[1]}{after}")
    print(f"written: {path}")
