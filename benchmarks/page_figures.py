"""Figures of the README and the evidence pages, from committed results alone.

    python benchmarks/page_figures.py

``effect.png``: held-out accuracy over steps, three tasks, four systems. Curves are means over the measured seeds at each
system's tuned rate, smoothed over three validations; bands are 95% bootstrap intervals of the mean.
``signal.png``: signal over variance of the gradient, GRPO = 1, six tasks, with 95% intervals.
``success.png``: the same on two tasks by the rate of success of their prompts.
``shapes.png``: as effect.png, for the same rollouts as few prompts with many each or as many prompts with few (shapes.py).
``shapes_lm.png``: the same on a real language model.
``shapes_large.png``: the same with 64 rollouts in each step.
``ceilings.png``: the same with credit from true values, sampled and greedy (ceilings.py).
``line_rewards.png``: the same with rewards on the lines that earned them (line_rewards.py).
``shape_signal.png``: signal over variance of such steps (shape_signal.py), GRPO with 4 × 4 = 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
from by_success import RESULTS as BY_SUCCESS
from curve_figures import (
    PANELS,
    SHAPES,
    draw_ceilings,
    draw_effect,
    draw_line_rewards,
    draw_shapes,
    save,
)
from line_rewards import LANGUAGE_MODEL as RANKS
from matplotlib.axes import Axes
from shapes import FOLDER, LANGUAGE_MODEL, LARGE, SHARES, TINY, TOTALS

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TASKS = {
    "sums": "gradient",
    "sorting": "gradient",
    "own_sums": "gradient_own_sums",
    "parts": "gradient_parts",
    "chains": "gradient_chains",
    "habits": "gradient_habits",
}
CREDITS = {
    "default": ("rredcot, default", "#1f6fb4"),
    "norm_weighted_mean": ("rredcot, one baseline per trace, scale: none", "#d9600a"),
    "value_lam_1": ("rredcot, measured from values", "#5f6b7a"),
}
SOLVED = ("habits", "own_sums")
"""Tasks that have prompts of every success."""

OF_SUCCESS = {
    "leave_one_out": ("RLOO", "#9aa0a6"),
    "default": ("rredcot, default", "#1f6fb4"),
    "default_unscaled": ("default, scale: none", "#7db3dd"),
    "norm_weighted_mean": ("one baseline per trace", "#d9600a"),
    "low_floor_trace": ("one baseline per trace, low floor", "#f2a65a"),
    "low_floor": ("default, low floor", "#2a7f4f"),
    "low_floor_credit_weight_0.5": ("default, low floor, credit_weight: 0.5", "#7cc49a"),
    "low_variance": ("preset low_variance (80 to 98 % and any)", "#111111"),
    "no_baseline": ("no baseline at all", "#8e44ad"),
}
ON_TWO = {"low_variance": ("gradient_easy", "gradient_any")}
"""Of these, what was measured in these results alone."""

LM_TASKS = ("words", "totals")
SIGNAL_TASKS = {task: "shape_signal" for task in TASKS if task != "own_sums"} | {
    task: f"shape_signal_{task}" for task in ("shares", *LM_TASKS)
}
"""``own_sums`` is left out: its intervals are 0.1 to 200."""

SIGNAL_SHAPES = {f"{shape.replace(' × ', 'x')}/{system}": style for (shape, system), style in SHAPES.items()}


def signals(task: str) -> dict[str, dict[str, float]]:
    """Signal over variance of each of ``CREDITS`` on a task, with its interval."""
    summary = json.loads((FOLDER / f"{TASKS[task]}.json").read_text())["summary"]
    return {name: summary[f"{task}/snr_vs_grpo/{name}"] for name in CREDITS}


def draw_signals(output: Path) -> None:
    """A line per task, a mark per way of giving credit."""
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for row, task in enumerate(TASKS):
        for place, (name, entry) in enumerate(signals(task).items()):
            y = row + 0.22 * (place - 1)
            axis.plot([entry["low"], entry["high"]], [y, y], color=CREDITS[name][1], linewidth=2)
            label = CREDITS[name][0] if row == 0 else None
            axis.plot(entry["value"], y, "o", color=CREDITS[name][1], label=label, markersize=6)
    _finish_signals(axis, list(TASKS), ([0.7, 1, 1.5, 2, 3, 5], ["0.7", "1 (GRPO)", "1.5", "2", "3", "5"]))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save(figure, output)


def _finish_signals(axis: Axes, tasks: list[str], ticks: tuple[list[float], list[str]]) -> None:
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xticks(*ticks)
    axis.minorticks_off()
    axis.set_yticks(range(len(tasks)), tasks)
    axis.invert_yaxis()
    axis.set_xlabel("signal over variance of the gradient, GRPO = 1, 95 % intervals")
    axis.grid(axis="x", color="0.92")
    axis.spines[["top", "right"]].set_visible(False)


def draw_success(output: Path) -> None:
    """A panel per task, a group of marks per success, a mark per way of giving credit."""
    figure, axes = plt.subplots(1, len(SOLVED), figsize=(11, 4.2), layout="constrained", sharey=True)
    step = 0.8 / len(OF_SUCCESS)
    for axis, task in zip(axes, SOLVED, strict=True):
        for place, result in enumerate(BY_SUCCESS.values()):
            summary = json.loads((FOLDER / f"{result}.json").read_text())["summary"]
            for number, (name, (label, color)) in enumerate(OF_SUCCESS.items()):
                axis.plot([], [], "o", color=color, markersize=5, label=None if place else label)
                if result not in ON_TWO.get(name, BY_SUCCESS.values()):
                    continue
                x, entry = place - 0.4 + step * (number + 0.5), summary[f"{task}/snr_vs_grpo/{name}"]
                axis.plot([x, x], [entry["low"], entry["high"]], color=color, linewidth=2)
                axis.plot(x, entry["value"], "o", color=color, markersize=5)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(title=task, xlabel="success of the prompts", yscale="log", ylim=(0.7, 140))
        axis.set_yticks([1, 2, 4, 8, 16, 32, 64], ["1 (GRPO)", "2", "4", "8", "16", "32", "64"])
        axis.minorticks_off()
        axis.set_xticks(range(len(BY_SUCCESS)), list(BY_SUCCESS))
        axis.grid(axis="y", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("signal over variance, GRPO = 1")
    marks, labels = axes[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside upper center", ncols=4, frameon=False, columnspacing=1.2)
    save(figure, output)


def draw_shape_signals(output: Path) -> None:
    """A line per task, a mark per shape of a step and system."""
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    for row, (task, result) in enumerate(SIGNAL_TASKS.items()):
        summary = json.loads((FOLDER / f"{result}.json").read_text())["summary"]
        for place, (name, (label, color, line)) in enumerate(SIGNAL_SHAPES.items()):
            entry, y = summary[f"{task}/snr_vs_grpo_4x4/{name}"], row + 0.13 * (place - 2.5)
            axis.plot([entry["low"], entry["high"]], [y, y], line, color=color, linewidth=2)
            inside = color if line == "-" else "white"
            axis.plot(entry["value"], y, "o", color=color, mfc=inside, label=None if row else label, markersize=5)
    labels = [f"{task}\n(SmolLM2-135M)" if task in LM_TASKS else task for task in SIGNAL_TASKS]
    _finish_signals(
        axis, labels, ([0.25, 0.5, 1, 1.5, 2, 3, 5, 8], ["0.25", "0.5", "1", "1.5", "2", "3", "5", "8"])
    )
    axis.set_xlabel("signal over variance of the gradient, GRPO with 4 × 4 = 1, 95 % intervals")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save(figure, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where the pictures go")
    folder = parser.parse_args().folder
    draw_effect(folder / "effect.png")
    draw_signals(folder / "signal.png")
    draw_success(folder / "success.png")
    titles = {family: f"{family}, {title}" for family, (_, title) in PANELS.items()}
    shares = {"shares": "shares, six lines, reward: share right"}
    draw_shapes(folder / "shapes.png", [(TINY, titles), (SHARES, shares)])
    language_model = [
        (LANGUAGE_MODEL, {"words": "words, SmolLM2-135M-Instruct"}),
        (TOTALS, {"totals": "totals"}),
        (RANKS, {"ranks": "ranks, reward: share of right lines"}),
    ]
    draw_shapes(folder / "shapes_lm.png", language_model)
    large = {family: titles[family] for family in ("habits", "chains")} | shares
    draw_shapes(folder / "shapes_large.png", [(LARGE, large)], rollouts=64)
    draw_ceilings(folder / "ceilings.png")
    draw_line_rewards(folder / "line_rewards.png")
    draw_shape_signals(folder / "shape_signal.png")
