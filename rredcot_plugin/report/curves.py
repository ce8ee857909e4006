"""Learning curves of several runs, from the tensorboard event files that verl writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rredcot_plugin.renamed import new_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REWARD = "critic/score/mean"
"""verl's mean score of the batch at each training step."""

COLOURS = ("#7a828b", "#1f6fb8", "#b4530a", "#6b4fa0")
"""Runs in order; told apart by lightness as well, so colour-blind readers and grey printers can."""

INK, LINE = "#1c2024", "#dfe2e5"


@dataclass(frozen=True)
class Curve:
    """A metric of one run: ``values[i]`` was logged at ``steps[i]``; steps rise."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def smoothed(self, weight: float = 0.8) -> tuple[float, ...]:
        """Exponential moving average m_t = w·m_{t−1} + (1−w)·x_t, divided by 1 − wᵗ so that it starts unbiased.

        >>> Curve("a", (1, 2, 3), (1.0, 1.0, 1.0)).smoothed()
        (1.0, 1.0, 1.0)
        """
        mean, found = 0.0, []
        for count, value in enumerate(self.values, start=1):
            mean = weight * mean + (1 - weight) * value
            found.append(round(mean / (1 - weight**count), 6))
        return tuple(found)


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars below a tensorboard folder: name -> [(step, value), …] in order of steps; old names of ours become new.

    Raises:
        ValueError: no event file in the folder.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = sorted(folder.rglob("events.out.tfevents.*"))
    if not files:
        raise ValueError(f"{folder}: no tensorboard event files (events.out.tfevents.*) here")
    found: dict[str, dict[int, float]] = {}
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})  # 0: keep all points
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(new_metric(tag), {}).update(
                {event.step: event.value for event in events.Scalars(tag)}
            )
    return {tag: sorted(points.items()) for tag, points in found.items()}


def read_curves(runs: Mapping[str, Path], metric: str = REWARD) -> list[Curve]:
    """One curve a run (name -> tensorboard folder), in the order given.

    Raises:
        ValueError: a folder without event files, or a run that never logged ``metric``.
    """
    return [curve_of(name, read_scalars(folder), metric) for name, folder in runs.items()]


def curve_of(name: str, scalars: Mapping[str, list[tuple[int, float]]], metric: str = REWARD) -> Curve:
    """``metric`` of a run as a curve; ValueError naming the known metrics if it is not there."""
    if not scalars.get(metric):
        known = ", ".join(sorted(scalars)) or "none"
        raise ValueError(f"run {name!r}: expected the metric {metric!r}, got {known}")
    steps, values = zip(*scalars[metric], strict=True)
    return Curve(name, steps, values)


def draw(curves: Sequence[Curve], ylabel: str = "mean reward of the batch") -> Figure:
    """Every run raw and thin, smoothed and thick on top, its name at the end of the line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for curve, colour in zip(curves, _colours(len(curves)), strict=True):
        axes.plot(curve.steps, curve.values, color=colour, linewidth=1, alpha=0.4)
        axes.plot(curve.steps, curve.smoothed(), color=colour, linewidth=2.6, solid_capstyle="round")
    _name_lines(axes, curves)
    axes.set_xlabel("training step (thin: as measured, thick: smoothed)", color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.margins(x=0.01)
    return figure


def _name_lines(axes: object, curves: Sequence[Curve]) -> None:
    """Names right of the lines' ends, moved apart where the ends are close."""
    low, high = axes.get_ylim()  # type: ignore[attr-defined]
    gap = 0.06 * (high - low)
    at = float("-inf")
    colours = dict(zip((curve.name for curve in curves), _colours(len(curves)), strict=True))
    for curve in sorted(curves, key=lambda curve: curve.smoothed()[-1]):
        at = max(curve.smoothed()[-1], at + gap)
        axes.annotate(  # type: ignore[attr-defined]
            curve.name, (1.01, at), xycoords=("axes fraction", "data"), va="center", weight="bold",
            color=colours[curve.name], annotation_clip=False,
        )  # fmt: skip


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def save_png(figure: Figure, path: Path) -> None:
    """Write the picture on white, 150 dots an inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=150, facecolor="white")
