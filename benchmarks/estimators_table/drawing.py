"""The picture of the page: direction on enumerable policies, signal over variance on the families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from estimators_table.tables import label

Summary = Mapping[str, Mapping[str, float]]
# Okabe and Ito's colours, told apart by shape too
STYLES = (
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#D55E00", "v"),
    ("#56B4E9", "P"),
)
SHOWN_ZERO = 0.02
"""Degrees at which an exact direction is drawn on the logarithmic axis."""


def draw(path: Path, summary: Summary, sizes: Sequence[int], families: Sequence[str]) -> None:
    """A panel for the angles, and one for the families where there are any; a row for each estimator."""
    rows = _rows(summary, sizes, families)
    widths = [1.0, 1.0] if families else [1.0]
    figure, axes = plt.subplots(
        1, len(widths), figsize=(4 + 5 * len(widths), 1.6 + 0.3 * len(rows)), sharey=True, squeeze=False
    )
    _angles(axes[0][0], summary, rows, sizes)
    if families:
        _signals(axes[0][1], summary, rows, families)
    for axis in axes[0]:
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.grid(axis="x", color="0.88")
        for row in range(0, len(rows), 2):
            axis.axhspan(row - 0.5, row + 0.5, color="0.965", zorder=0)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=4, frameon=False)
    axes[0][0].set_yticks(range(len(rows)), [label(name).replace("`", "") for name in rows])
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    print(f"written: {path}")


def _rows(summary: Summary, sizes: Sequence[int], families: Sequence[str]) -> list[str]:
    """Estimators of either panel, in the order of their first appearance; those that only repeat another are left out."""
    names = [key.split("/")[1] for key in summary if key.startswith("batch_degrees/")]
    for family in families:
        names += [key.split("/")[2] for key in summary if key.startswith(f"{family}/cosine/")]
    left_out = {"grpo_vectorized", "rloo_vectorized", "tir_optimal_token_baseline"}
    return [name for name in dict.fromkeys(names) if name not in left_out]


def _angles(axis: Any, summary: Summary, rows: Sequence[str], sizes: Sequence[int]) -> None:
    for size, (colour, marker), shift in zip(sizes, STYLES, (-0.27, 0, 0.27), strict=False):
        at = [i for i, name in enumerate(rows) if f"batch_degrees/{name}/{size}" in summary]
        found = [summary[f"batch_degrees/{rows[i]}/{size}"]["value"] for i in at]
        shown = np.maximum(found, SHOWN_ZERO)
        axis.plot(shown, np.array(at) + shift, marker, color=colour, markersize=5.5, label=f"N = {size}")
    axis.set_xscale("log")
    axis.set_xlim(SHOWN_ZERO / 1.6, 90)
    axis.set_xticks([SHOWN_ZERO, 0.1, 1, 10, 45], ["0\n(exact)", "0.1°", "1°", "10°", "45°"])
    axis.minorticks_off()
    axis.set_title("Direction: angle of E[ĝ] and g,\nbatch of enumerable prompts", fontsize=11)


def _signals(axis: Any, summary: Summary, rows: Sequence[str], families: Sequence[str]) -> None:
    shifts = np.linspace(-0.28, 0.28, len(families)) if len(families) > 1 else [0.0]
    for family, (colour, marker), shift in zip(families, STYLES, shifts, strict=False):
        at = [i for i, name in enumerate(rows) if f"{family}/snr_vs_grpo/{name}" in summary]
        entries = [summary[f"{family}/snr_vs_grpo/{rows[i]}"] for i in at]
        y = np.array(at) + shift
        axis.hlines(y, [e["low"] for e in entries], [e["high"] for e in entries], color=colour, linewidth=1.2)
        axis.plot([e["value"] for e in entries], y, marker, color=colour, markersize=5, label=family)
    axis.axvline(1, color="black", linewidth=0.9)
    axis.set_xscale("log")
    ticks = [0.25, 0.5, 1, 2, 4]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_title("Signal over variance, GRPO = 1 (95 %),\ntiny reasoners, groups of 8", fontsize=11)
