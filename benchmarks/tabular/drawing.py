"""The pictures beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from tabular.gaming import Race

LINES = {
    "confidence_lam_1": ("λ=1", "tab:blue"),
    "confidence_lam_0.5": ("λ=0.5", "tab:green"),
    "confidence_lam_0": ("λ=0", "tab:red"),
    "refitted_lam_0": ("λ=0, fitted anew every step", "tab:orange"),
    "frozen_lam_0": ("λ=0, features of the first policy", "tab:purple"),
    "no_reward_lam_0": ("λ=0, no reward at all", "tab:gray"),
}
METHODS = {
    "grpo": "GRPO",
    "grpo_without_std": "GRPO, not divided (Dr. GRPO)",
    "leave_one_out": "RLOO",
    "exact_lam_1": "exact values, λ = 1",
    "exact_lam_0.9": "… λ = 0.9",
    "exact_lam_0.5": "… λ = 0.5",
    "exact_lam_0": "… λ = 0",
    "pearson_0.9_lam_1": "values with Pearson 0.9, λ = 1",
    "pearson_0.9_lam_0.5": "… λ = 0.5",
    "pearson_0.9_lam_0": "… λ = 0",
    "pearson_0.5_lam_1": "values with Pearson 0.5, λ = 1",
    "pearson_0.5_lam_0.5": "… λ = 0.5",
    "pearson_0.5_lam_0": "… λ = 0",
    "weighted_exact": "mode: weighted, exact values",
    "monte_carlo_4_lam_1": "monte_carlo, 4 continuations, λ = 1",
    "monte_carlo_4_lam_0": "… λ = 0",
    "value_baseline": "baseline: value",
    "default": "the default",
    "default_unscaled": "the default, scale: none",
}
"""Methods of the picture, and what the page calls them; the record has all."""
KINDS = {
    "length_bias": "likes length",
    "path_bonus": "likes repeats",
    "chosen_action": "all to one action",
    "delayed": "one step late",
    "nothing_before_end": "all to the last step",
    "swapped_siblings": "siblings swapped",
    "turned": "1 − V",
    "sees_outcome": "has seen R",
    "sees_twice_outcome": "has seen R, says 2 R",
}
"""What a picture calls values; others go by their own name."""


def draw_gradients(path: Path, summary: Mapping[str, Mapping[str, float]], races: Mapping[str, Race]) -> None:
    """Signal over variance and cosine of ``METHODS``, and the ascents from either start."""
    figure, axes = plt.subplots(1, 3, figsize=(16, 5.6), gridspec_kw={"width_ratios": [1.6, 1, 1]})
    entries = [summary[f"snr_vs_grpo/{name}"] for name in METHODS]
    bars(axes[0], list(METHODS.values()), entries, "#4c78a8")
    for row, name in enumerate(METHODS):
        axes[0].text(
            0.03, row, f"cos {summary[f'cosine/{name}']['value']:.3f}", va="center", fontsize=7, color="w"
        )
    axes[0].axvline(1, color="black", linewidth=0.8)
    axes[0].set_xlabel("signal over variance, GRPO = 1, equal rollouts (median, 95 %)")
    for axis, kind in zip(axes[1:], ("cold", "warm"), strict=True):
        for case, (label, colour) in LINES.items():
            one = races[f"{kind}/{case}"]
            axis.plot(one.ascent.rewards.mean(dim=0), color=colour, label=label)
            axis.plot(one.believed.mean(dim=0), color=colour, linestyle=":", linewidth=1)
        axis.set(ylim=(0, 1.02), xlabel="step of exact ascent", title=f"{kind} start: E[R], dotted E[V̂]")
    axes[2].legend(fontsize=8, loc="lower right")
    finish(figure, path)


def draw_regret(
    path: Path, summary: Mapping[str, Mapping[str, float]], kinds: Sequence[str], lambdas: Sequence[float]
) -> None:
    """Regret of every value function, one panel for each λ."""
    figure, axes = plt.subplots(1, len(lambdas), figsize=(16, 5), sharey=True)
    names = [KINDS.get(kind, kind.replace("pearson_", "Pearson ")) for kind in kinds]
    for axis, lam in zip(axes, lambdas, strict=True):
        bars(axis, names, [summary[f"regret/{kind}/lam_{lam:g}"] for kind in kinds], "#e45756")
        axis.set(xlim=(0, 1), title=f"λ = {lam:g}", xlabel="regret of where it ends (mean, 95 %)")
    finish(figure, path)


def bars(axis: Any, names: Sequence[str], entries: Sequence[Mapping[str, float]], colour: str) -> None:
    """Horizontal bars with intervals, the first on top."""
    centre = [entry["value"] for entry in entries]
    below = [max(0.0, entry["value"] - entry["low"]) for entry in entries]
    above = [max(0.0, entry["high"] - entry["value"]) for entry in entries]
    axis.barh(range(len(names)), centre, xerr=[below, above], color=colour, ecolor="black", capsize=2, height=0.75)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)


def finish(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
    print(f"written: {path}")
