"""Correlation by family and estimator, with the ceiling of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

MEASURES = {"pearson_value": "ceiling_value", "pearson_delta": "ceiling_delta"}
TITLES = {"pearson_value": "value of a boundary", "pearson_delta": "credit of a segment"}


def draw(output: Path, summary: dict[str, dict[str, float]], families: list[str], estimators: list[str]) -> None:
    """One panel per measure: a row per estimator, a colour per family, a line at the family's ceiling."""
    height = 0.45 * len(estimators) + 1.6
    figure, axes = plt.subplots(1, 2, figsize=(11, height), sharey=True, layout="constrained")
    offsets = np.linspace(-0.3, 0.3, len(families)) if len(families) > 1 else np.zeros(1)
    for axis, (measure, top) in zip(axes, MEASURES.items(), strict=True):
        for color, (name, offset) in enumerate(zip(families, offsets, strict=True)):
            _family(axis, [summary[f"{name}/{e}/{measure}"] for e in estimators], offset, f"C{color}", name)
            axis.axvline(summary[f"{name}/{top}"]["value"], color=f"C{color}", linewidth=1, linestyle=":")
        for row in range(len(estimators) - 1):
            axis.axhline(row + 0.5, color="0.93", linewidth=0.8, zorder=0)
        axis.axvline(0, color="0.7", linewidth=0.8)
        axis.set_xlim(-0.5, 1.02)
        axis.set_xlabel("Pearson correlation with Monte-Carlo values (dotted: ceiling)")
        axis.set_title(TITLES[measure])
    axes[0].set_yticks(range(len(estimators)), estimators)
    axes[0].invert_yaxis()
    axes[0].legend(loc="lower left", fontsize=8)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    plt.close(figure)
    print(f"written: {output}")


def _family(axis: Any, entries: list[dict[str, float]], offset: float, color: str, name: str) -> None:
    values, low, high = (np.array([entry[key] for entry in entries]) for key in ("value", "low", "high"))
    rows = np.arange(len(entries)) + offset
    axis.hlines(rows, low, high, color=color, linewidth=1.2)
    axis.plot(values, rows, "o", color=color, markersize=4, label=name)
