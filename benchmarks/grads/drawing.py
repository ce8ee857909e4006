"""Signal over variance of methods, a panel for each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

TARGET = 1.5

ON_THE_PAGE = {
    "grpo": "GRPO",
    "grpo_no_std": "GRPO, not divided (Dr. GRPO)",
    "leave_one_out": "RLOO",
    "no_baseline": "no baseline at all",
    "norm_weighted_mean": "one baseline per trace",
    "value_lam_1": "baseline: value",
    "value_lam_0": "… with λ = 0",
    "default": "the default",
    "default_unscaled": "the default, scale: none",
    "credit_weight_0.5": "… credit_weight: 0.5",
    "calibrated_from_least_variance_lam_0.5": "… λ = 0.5",
    "calibrated_from_least_variance_lam_0": "… λ = 0",
    "later_monte_carlo_4_1": "… credit_weight: 1, δ of 4 continuations",
    "later_true_1": "… credit_weight: 1, true δ",
    "true_from_least_variance_lam_0": "… λ = 0, true values",
}
"""Methods of ``gradient.py`` in the picture, and what the page calls them; the record has all."""


def draw(
    output: Path, summary: Mapping[str, Mapping[str, float]], families: Sequence[str], names: Sequence[str]
) -> None:
    """A row per method of ``ON_THE_PAGE`` among ``names``, with interval; blue where the cosine is at least .99, red below."""
    names = [name for name in ON_THE_PAGE if name in names]
    figure, axes = plt.subplots(
        1, len(families), figsize=(3 + 5 * len(families), 0.2 * len(names) + 1.4), sharey=True, squeeze=False
    )
    rows = np.arange(len(names))
    for axis, family in zip(axes[0], families, strict=True):
        entries = [summary[f"{family}/snr_vs_grpo/{name}"] for name in names]
        cosines = [summary[f"{family}/cosine/{name}"]["value"] for name in names]
        value, low, high = (np.array([entry[key] for entry in entries]) for key in ("value", "low", "high"))
        colors = ["#4c78a8" if cosine >= 0.99 else "#e45756" for cosine in cosines]
        axis.barh(rows, value, color=colors, height=0.75)
        axis.hlines(rows, low, high, color="black", linewidth=1)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.axvline(TARGET, color="black", linewidth=0.8, linestyle=":")
        axis.set_xlim(0, min(8.0, float(np.nanmax(high)) * 1.05))
        axis.set_title(family)
        axis.set_xlabel("signal over variance, GRPO = 1 (95 %); dotted: aim; red: cosine under .99")
    axes[0][0].set_yticks(rows, [ON_THE_PAGE[name] for name in names], fontsize=7)
    axes[0][0].set_ylim(len(names) - 0.4, -0.6)
    figure.tight_layout()
    figure.savefig(output, dpi=90, bbox_inches="tight")
    plt.close(figure)
    print(f"written: {output}")
