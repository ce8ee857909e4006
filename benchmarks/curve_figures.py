"""Curves of learning for pages: held-out reward over steps, a panel per task (page_figures.py)."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from ceilings import STUDY as CEILINGS
from ceilings import by
from learn.curves import Curves, curves_of
from learn.runs import with_numbers
from learn.statistics import mean_band
from learn.systems import choose
from line_rewards import STUDY as LINE_REWARDS
from line_rewards import TRAPS
from matplotlib.figure import Figure
from shapes import FOLDER, Study, found_curves

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
Style = tuple[str, str, str]
"""Label, colour and line of a curve."""

SHAPES: dict[tuple[str, str], Style] = {
    ("4 × 4", "grpo"): ("GRPO, 4 prompts × 4 rollouts", "#5f6b7a", "-"),
    ("16 × 1", "grpo"): ("GRPO, 16 × 1: no baseline", "#8e44ad", "-"),
    ("16 × 1", "reinforce_plus_plus"): ("REINFORCE++, 16 × 1", "#8a6d3b", "--"),
    ("16 × 1", "rredcot"): ("rredcot, default, 16 × 1", "#1f6fb4", "-"),
    ("16 × 1", "low_variance"): ("low_variance, 16 × 1", "#2a7f4f", "--"),
}
ONE_BASELINE: dict[tuple[str, str], Style] = {
    ("16 × 1", "lean"): ("one baseline per trace (lean), 16 × 1", "#d9600a", "-"),
}
"""Apart from ``SHAPES``, whose signal over variance has been measured too."""

ON_LINES: dict[tuple[str, str], Style] = {
    ("16 × 1", "line_rewards"): ("the default, rewards on lines, 16 × 1", "#2a7f4f", "-"),
}
LARGE_SHAPES: dict[tuple[str, str], Style] = {
    ("8 × 8", "grpo"): ("GRPO, 8 prompts × 8 rollouts", "#5f6b7a", "-"),
    ("8 × 8", "rredcot"): ("rredcot, default, 8 × 8", "#7db3dd", "-"),
    ("64 × 1", "grpo"): ("GRPO, 64 × 1: no baseline", "#8e44ad", "-"),
    ("64 × 1", "rredcot"): ("rredcot, default, 64 × 1", "#1f6fb4", "-"),
    ("64 × 1", "lean"): ("one baseline per trace (lean), 64 × 1", "#d9600a", "-"),
}
ANY_SHAPE = SHAPES | ONE_BASELINE | LARGE_SHAPES | ON_LINES
LINE_CURVES: dict[tuple[str, str], Style] = {
    ("4 × 4", "grpo"): SHAPES["4 × 4", "grpo"],
    ("16 × 1", "rredcot"): SHAPES["16 × 1", "rredcot"],
    ("16 × 1", "line_rewards_reinforce_plus_plus"): ("REINFORCE++, rewards on lines, 16 × 1", "#8a6d3b", "--"),
    **ON_LINES,
    ("16 × 1", "line_rewards_lam50"): ("… with lam_turn_rewards: 0.5", "#2a7f4f", ":"),
    ("16 × 1", "line_rewards_lam0"): ("… with lam_turn_rewards: 0", "#c0392b", ":"),
}
CEILING_CURVES: dict[tuple[str, str], Style] = {
    ("4 × 4", "grpo"): SHAPES["4 × 4", "grpo"],
    ("16 × 1", "grpo"): SHAPES["16 × 1", "grpo"],
    ("16 × 1", "rredcot"): SHAPES["16 × 1", "rredcot"],
    ("16 × 1", "true_credit"): ("true values as credit, 16 × 1", "#2a7f4f", "-"),
}


def accuracies(result: str, family: str, system: str) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed steps (E,) of the validations and accuracies (n, E) of the measured runs at the tuned rate.

    A result keeps the runs of earlier reports, those of a former default under the same name too: they are left out.
    """
    record = json.loads((FOLDER / f"{result}.json").read_text())
    rate = record["settings"]["chosen_rates"][f"{family} {system}"]
    wanted = {"family": family, "system": system, "rate": rate, **choose([system], [])[0].identity}
    runs = [
        (row["identity"]["seed"], with_numbers(row))
        for row in record["raw"]
        if row["identity"].items() >= wanted.items() and row["identity"]["seed"] in record["seeds"]
    ]
    return _smoothed(curves_of(runs))


def draw_effect(output: Path) -> None:
    """A panel per task, a curve per system."""
    panels = {
        title: [(*accuracies(result, family, system), style) for system, style in SYSTEMS.items()]
        for family, (result, title) in PANELS.items()
    }
    _draw_learning(output, panels)


def draw_shapes(
    output: Path,
    studies: list[tuple[Study, dict[str, str]]],
    rollouts: int = 16,
) -> None:
    """A panel per task of the studies, which have titles, a curve per shape of a step and system."""
    panels = {}
    for study, titles in studies:
        found = found_curves(study)
        curves = {key: style for key, style in ANY_SHAPE.items() if key in found}
        for family, title in titles.items():
            panels[title] = [(*_smoothed(found[key][family]), style) for key, style in curves.items()]
    _draw_learning(output, panels, rollouts)


def draw_line_rewards(output: Path) -> None:
    """A panel per task, a curve per system that was run there."""
    panels = {}
    for study in (LINE_REWARDS, TRAPS):
        found = found_curves(study)
        for family in study.families:
            curves = [(key, style) for key, style in LINE_CURVES.items() if key in found]
            panels[family] = [(*_smoothed(found[key][family]), style) for key, style in curves]
    _draw_learning(output, panels)


def draw_ceilings(output: Path) -> None:
    """A panel per task and way of answering, a curve per system."""
    found, panels = found_curves(CEILINGS), {}
    for family in CEILINGS.families:
        for measure, title in (("accuracy", "sampled at temperature 1"), ("greedy", "greedy")):
            curves = [(by(measure, found[key][family]), style) for key, style in CEILING_CURVES.items()]
            panels[f"{family}, {title}"] = [(*_smoothed(runs), style) for runs, style in curves]
    _draw_learning(output, panels)


def _smoothed(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    return curves.dates("step", curves.everyone), curves.each


def _draw_learning(
    output: Path, panels: dict[str, list[tuple[np.ndarray, np.ndarray, Style]]], rollouts: int = 16
) -> None:
    """A panel per title: steps (E,), smoothed accuracies (n, E), and label, colour and line of a curve."""
    width = 7 if len(panels) == 1 else 3.7 * len(panels)
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 3.5), layout="constrained", squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for steps, accuracy, (label, color, style) in curves:
            axis.plot(steps, accuracy.mean(axis=0), style, color=color, label=label, linewidth=1.8)
            axis.fill_between(steps, *mean_band(accuracy), color=color, alpha=0.15, linewidth=0)
        axis.set(title=title, xlabel=f"training steps of {rollouts} rollouts", xlim=(0, steps[-1]), ylim=(0, None))
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("held-out reward, smoothed")
    found = [axis.get_legend_handles_labels() for axis in axes[0]]
    known = {label: line for own, texts in found for line, label in zip(own, texts, strict=True)}
    lines, labels = list(known.values()), list(known)
    columns = 2 if len(panels) < 3 else len(lines) if len(lines) < 5 else 3
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)
    save(figure, output)


def save(figure: Figure, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)
    plt.close(figure)
    print(f"written: {output}")
