"""The README's figure of the effect, from committed results: held-out accuracy over steps, three tasks, four systems.

    python benchmarks/effect_figure.py

It measures nothing. Curves are means over the measured seeds at each system's tuned rate, smoothed over three
validations; bands are 95% bootstrap intervals of the mean.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from learn.curves import smoothed
from learn.statistics import mean_band

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OUTPUT = ROOT / "docs" / "images" / "effect.png"
PANELS = {
    "habits": ("learning", "two to four lines"),
    "chains": ("learning", "eight lines"),
    "parts": ("learning_parts", "six lines"),
}
SYSTEMS = {
    "grpo": ("GRPO", "#5f6b7a", "-"),
    "rredcot": ("rredcot, default", "#1f6fb4", "-"),
    "trace_baseline": ("rredcot, one baseline per trace", "#d9600a", "-"),
    "control_no_reward": ("control without reward", "#9aa0a6", "--"),
}


def accuracies(result: str, family: str, system: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (E,) of the validations, and smoothed accuracies (n, E) of the measured runs at the tuned rate."""
    record = json.loads((RESULTS / f"{result}.json").read_text())
    rate = record["settings"]["chosen_rates"][f"{family} {system}"]
    runs = []
    for row in record["raw"]:
        run = row["identity"]
        same = (run["family"], run["system"], run["rate"]) == (family, system, rate)
        if same and run["seed"] in record["seeds"] and row["status"] == "done":
            runs.append({name: np.array(row["evals"][name].split(), float) for name in ("step", "accuracy")})
    return runs[0]["step"], np.apply_along_axis(smoothed, 1, np.array([run["accuracy"] for run in runs]))


def draw(output: Path) -> None:
    """A panel per task."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 3.5), layout="constrained")
    for axis, (family, (result, title)) in zip(axes, PANELS.items(), strict=True):
        for system, (label, color, style) in SYSTEMS.items():
            steps, curves = accuracies(result, family, system)
            axis.plot(steps, curves.mean(axis=0), style, color=color, label=label, linewidth=1.8)
            axis.fill_between(steps, *mean_band(curves), color=color, alpha=0.15, linewidth=0)
        axis.set(title=title, xlabel="training steps of 16 rollouts", xlim=(0, steps[-1]), ylim=(0, None))
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("held-out accuracy")
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(SYSTEMS), frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)
    plt.close(figure)
    print(f"written: {output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the picture goes")
    draw(parser.parse_args().output)
