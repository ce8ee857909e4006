"""Five figures of the README and the evidence pages, from committed results alone.

    python benchmarks/page_figures.py

``effect.png``: held-out accuracy over steps, three tasks, four systems. Curves are means over the measured seeds at each
system's tuned rate, smoothed over three validations; bands are 95% bootstrap intervals of the mean.
``signal.png``: signal over variance of the gradient, GRPO = 1, six tasks, with 95% intervals.
``success.png``: the same on two tasks by the rate of success of their prompts.
``shapes.png``: as effect.png, for the same rollouts as few prompts with many each or as many prompts with few (shapes.py).
``shapes_lm.png``: the same on a real language model.
``ceilings.png``: the same with credit from true values, sampled and greedy (ceilings.py).
``line_rewards.png``: the same with rewards on the lines that earned them (line_rewards.py).
``shape_signal.png``: signal over variance of such steps (shape_signal.py), GRPO with 4 × 4 = 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from by_success import RESULTS as BY_SUCCESS
from ceilings import STUDY as CEILINGS
from ceilings import by
from learn.curves import Curves, smoothed
from learn.statistics import mean_band
from learn.systems import choose
from line_rewards import LANGUAGE_MODEL as RANKS
from line_rewards import STUDY as LINE_REWARDS
from line_rewards import TRAPS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from shapes import LANGUAGE_MODEL, SHARES, TINY, TOTALS, Study, found_curves

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
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
    "low_variance": ("preset low_variance (on two)", "#111111"),
    "no_baseline": ("no baseline at all", "#8e44ad"),
}
ON_TWO = {"low_variance": ("gradient_easy", "gradient_any")}
"""Of these, what was measured in these results alone."""

Style = tuple[str, str, str]
"""Label, colour and line of a curve."""

SHAPES: dict[tuple[str, str], Style] = {
    ("4 × 4", "grpo"): ("GRPO, 4 prompts × 4 rollouts", "#5f6b7a", "-"),
    ("16 × 1", "grpo"): ("GRPO, 16 × 1: no baseline", "#8e44ad", "-"),
    ("16 × 1", "reinforce_plus_plus"): ("REINFORCE++, 16 × 1", "#d9600a", "--"),
    ("16 × 1", "rredcot"): ("rredcot, default, 16 × 1", "#1f6fb4", "-"),
    ("16 × 1", "low_variance"): ("low_variance, 16 × 1", "#2a7f4f", "--"),
}
ON_LINES: dict[tuple[str, str], Style] = {
    ("16 × 1", "line_rewards"): ("the default, rewards on lines, 16 × 1", "#2a7f4f", "-"),
}
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
LM_TASKS = ("words", "totals")
SIGNAL_TASKS = {task: "shape_signal" for task in TASKS if task != "own_sums"} | {
    task: f"shape_signal_{task}" for task in ("shares", *LM_TASKS)
}
"""``own_sums`` is left out: its intervals are 0.1 to 200."""

SIGNAL_SHAPES = {f"{shape.replace(' × ', 'x')}/{system}": style for (shape, system), style in SHAPES.items()}


def accuracies(result: str, family: str, system: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (E,) of the validations, and smoothed accuracies (n, E) of the measured runs at the tuned rate.

    A result keeps the runs of earlier reports, those of a former default under the same name too: they are left out.
    """
    record = json.loads((RESULTS / f"{result}.json").read_text())
    rate = record["settings"]["chosen_rates"][f"{family} {system}"]
    wanted = {"family": family, "system": system, "rate": rate, **choose([system], [])[0].identity}
    runs = []
    for row in record["raw"]:
        run = row["identity"]
        same = run.items() >= wanted.items()
        if same and run["seed"] in record["seeds"] and row["status"] == "done":
            runs.append({name: np.array(row["evals"][name].split(), float) for name in ("step", "accuracy")})
    return runs[0]["step"], np.apply_along_axis(smoothed, 1, np.array([run["accuracy"] for run in runs]))


def signals(task: str) -> dict[str, dict[str, float]]:
    """Signal over variance of each of ``CREDITS`` on a task, with its interval."""
    summary = json.loads((RESULTS / f"{TASKS[task]}.json").read_text())["summary"]
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
    _save(figure, output)


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
            summary = json.loads((RESULTS / f"{result}.json").read_text())["summary"]
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
    _save(figure, output)


def draw_shape_signals(output: Path) -> None:
    """A line per task, a mark per shape of a step and system."""
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    for row, (task, result) in enumerate(SIGNAL_TASKS.items()):
        summary = json.loads((RESULTS / f"{result}.json").read_text())["summary"]
        for place, (name, (label, color, line)) in enumerate(SIGNAL_SHAPES.items()):
            entry, y = summary[f"{task}/snr_vs_grpo_4x4/{name}"], row + 0.13 * (place - 2.5)
            axis.plot([entry["low"], entry["high"]], [y, y], line, color=color, linewidth=2)
            inside = color if line == "-" else "white"
            axis.plot(entry["value"], y, "o", color=color, mfc=inside, label=None if row else label, markersize=5)
    labels = [f"{task}\n(SmolLM2-135M)" if task in LM_TASKS else task for task in SIGNAL_TASKS]
    _finish_signals(axis, labels, ([0.7, 1, 1.5, 2, 3, 5, 8], ["0.7", "1", "1.5", "2", "3", "5", "8"]))
    axis.set_xlabel("signal over variance of the gradient, GRPO with 4 × 4 = 1, 95 % intervals")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    _save(figure, output)


def draw_effect(output: Path) -> None:
    """A panel per task, a curve per system."""
    panels = {
        title: [(*accuracies(result, family, system), style) for system, style in SYSTEMS.items()]
        for family, (result, title) in PANELS.items()
    }
    _draw_learning(output, panels)


def draw_shapes(output: Path, studies: list[tuple[Study, dict[str, str]]]) -> None:
    """A panel per task of the studies, which have titles, a curve per shape of a step and system."""
    panels = {}
    for study, titles in studies:
        found = found_curves(study, RESULTS)
        curves = {key: style for key, style in (SHAPES | ON_LINES).items() if key in found}
        for family, title in titles.items():
            panels[title] = [(*_smoothed(found[key][family]), style) for key, style in curves.items()]
    _draw_learning(output, panels)


def draw_line_rewards(output: Path) -> None:
    """A panel per task, a curve per system that was run there."""
    panels = {}
    for study in (LINE_REWARDS, TRAPS):
        found = found_curves(study, RESULTS)
        for family in study.families:
            curves = [(key, style) for key, style in LINE_CURVES.items() if key in found]
            panels[family] = [(*_smoothed(found[key][family]), style) for key, style in curves]
    _draw_learning(output, panels)


def draw_ceilings(output: Path) -> None:
    """A panel per task and way of answering, a curve per system."""
    found, panels = found_curves(CEILINGS, RESULTS), {}
    for family in CEILINGS.families:
        for measure, title in (("accuracy", "sampled at temperature 1"), ("greedy", "greedy")):
            curves = [(by(measure, found[key][family]), style) for key, style in CEILING_CURVES.items()]
            panels[f"{family}, {title}"] = [(*_smoothed(runs), style) for runs, style in curves]
    _draw_learning(output, panels)


def _smoothed(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    return curves.steps, np.apply_along_axis(smoothed, 1, curves.evals["accuracy"])


def _draw_learning(output: Path, panels: dict[str, list[tuple[np.ndarray, np.ndarray, Style]]]) -> None:
    """A panel per title: steps (E,), smoothed accuracies (n, E), and label, colour and line of a curve."""
    width = 7 if len(panels) == 1 else 3.7 * len(panels)
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 3.5), layout="constrained", squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for steps, accuracy, (label, color, style) in curves:
            axis.plot(steps, accuracy.mean(axis=0), style, color=color, label=label, linewidth=1.8)
            axis.fill_between(steps, *mean_band(accuracy), color=color, alpha=0.15, linewidth=0)
        axis.set(title=title, xlabel="training steps of 16 rollouts", xlim=(0, steps[-1]), ylim=(0, None))
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("held-out reward, smoothed")
    found = [axis.get_legend_handles_labels() for axis in axes[0]]
    known = {label: line for own, texts in found for line, label in zip(own, texts, strict=True)}
    lines, labels = list(known.values()), list(known)
    columns = 2 if len(panels) < 3 else len(lines) if len(lines) < 5 else 3
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)
    _save(figure, output)


def _save(figure: Figure, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)
    plt.close(figure)
    print(f"written: {output}")


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
    draw_ceilings(folder / "ceilings.png")
    draw_line_rewards(folder / "line_rewards.png")
    draw_shape_signals(folder / "shape_signal.png")
