"""The runs of one system on one family as arrays, and when their mean curve gets to a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from learn.runs import DONE, PHASES, Record, Run
from learn.statistics import Interval, interval

WINDOW = 3
"""Validations that are averaged into one point of a curve; two at its ends."""


@dataclass(frozen=True)
class Curves:
    """n runs, one of each of ``seeds``, with E validations and T training steps; failed runs are only counted.

    ``evals[name]`` (n, E), ``trained[name]`` (n, T); ``spent`` (n, E) by "step", "seconds" and "tokens": what had
    been used when a validation was made. ``weights`` are digests of the models that the runs began with, "" where none
    was kept; ``cpus`` the processors that they ran on.
    """

    seeds: np.ndarray
    evals: dict[str, np.ndarray]
    trained: dict[str, np.ndarray]
    spent: dict[str, np.ndarray]
    reasons: tuple[str, ...]
    weights: frozenset[str]
    cpus: frozenset[str]

    @property
    def runs(self) -> int:
        return len(self.spent["step"])

    @property
    def everyone(self) -> np.ndarray:
        return np.arange(self.runs)

    def final(self, name: str) -> np.ndarray:
        """The last validation of each run."""
        found: np.ndarray = self.evals[name][:, -1]
        return found

    @property
    def area(self) -> np.ndarray:
        """Held-out accuracy of each run, the mean over all validations after the first: sample efficiency."""
        found: np.ndarray = self.evals["accuracy"][:, 1:].mean(axis=1)
        return found

    def curve(self, rows: np.ndarray) -> np.ndarray:
        """Smoothed mean accuracy (E,) of some runs."""
        return smoothed(self.evals["accuracy"][rows].mean(axis=0))

    @property
    def each(self) -> np.ndarray:
        """Smoothed accuracy (n, E) of every run."""
        found: np.ndarray = np.apply_along_axis(smoothed, 1, self.evals["accuracy"])
        return found

    def dates(self, axis: str, rows: np.ndarray) -> np.ndarray:
        """What these runs had used of ``axis`` on average at each point (E,) of their curve: the middle of its window. At the
        ends a point is the mean of two; dated as the last one is, it would flatter the faster of two curves."""
        return smoothed(self.spent[axis][rows].mean(axis=0))

    def deviation(self, name: str, rows: np.ndarray) -> float:
        """Standard deviation between seeds of what training saw, the mean over steps."""
        return float(self.trained[name][rows].std(axis=0, ddof=1).mean()) if len(rows) > 1 else np.nan


@dataclass(frozen=True)
class Pace:
    """Seconds a response token: ``plain``, of all phases but credit, which are the same work in every system, and
    ``update``, of that phase alone. Another load of the machine changes them by half."""

    plain: float
    update: float


def pace_of(records: Sequence[Record]) -> Pace:
    """The mean pace of some runs."""
    steps = [record["steps"] for record in records]
    tokens = sum(np.sum(each["response_tokens"]) for each in steps)
    total = {name: sum(np.sum(each[f"seconds_{name}"]) for each in steps) for name in PHASES}
    return Pace(float(sum(total.values()) - total["credit"]) / tokens, float(total["update"]) / tokens)


def collect(runs: Sequence[Run], records: Mapping[Run, Record], pace: Pace | None = None) -> Curves:
    """The arrays of these runs, as far as there are records; seconds at a ``pace``, if one is given.

    Raises:
        ValueError: none of them is done.
    """
    there = [(run.seed, records[run]) for run in runs if run in records]
    if not any(record["status"] == DONE for _, record in there):
        raise ValueError(f"{runs[0].family} {runs[0].system.name}: no finished run")
    return curves_of(there, pace)


def curves_of(runs: Sequence[tuple[int, Record]], pace: Pace | None = None) -> Curves:
    """The arrays of runs of one system on one family, each with its seed; one of them at least is done."""
    seeds = [seed for seed, record in runs if record["status"] == DONE]
    done = [record for _, record in runs if record["status"] == DONE]
    steps = np.array(done[0]["evals"]["step"])
    at = steps.astype(int)
    totals = [spent(record, pace) for record in done]
    return Curves(
        np.array(seeds),
        {
            name: np.array([record["evals"][name] for record in done])
            for name in ("accuracy", "all_right", "lucky", "greedy")
            if all(name in record["evals"] for record in done)
        },
        {
            name: np.array([record["steps"][name] for record in done])
            for name in ("accuracy", "grad_norm", "entropy")
        },
        {
            "step": np.tile(steps, (len(done), 1)),
            **{name: np.array([total[name][at] for total in totals]) for name in ("seconds", "tokens")},
        },
        tuple(record["reason"] for _, record in runs if record["status"] != DONE),
        frozenset(record.get("weights", "") for record in done),
        frozenset(record.get("cpu", "") for record in done),
    )


def spent(record: Record, pace: Pace | None = None) -> dict[str, np.ndarray]:
    """Running sums over the steps of a record, 0 first: seconds of training, and tokens that were generated.

    At a ``pace`` the plain work of a step takes what its tokens take there, and credit what it took here, times the
    pace of updates there over that here.
    """
    steps = record["steps"]
    seconds = np.sum([steps[f"seconds_{name}"] for name in PHASES], axis=0)
    if pace is not None:
        scale = pace.update / pace_of([record]).update
        seconds = pace.plain * np.array(steps["response_tokens"]) + scale * np.array(steps["seconds_credit"])
    tokens = np.array(steps["response_tokens"]) + np.array(steps["continuation_tokens"])
    return {name: np.concatenate([[0.0], np.cumsum(x)]) for name, x in (("seconds", seconds), ("tokens", tokens))}


def smoothed(curve: np.ndarray) -> np.ndarray:
    """Running mean over ``WINDOW`` points, over those that there are at the ends.

    >>> smoothed(np.array([0.0, 3.0, 6.0, 0.0])).tolist()
    [1.5, 3.0, 3.0, 3.0]
    """
    kernel, side = np.ones(WINDOW), WINDOW // 2
    sums, counts = (np.convolve(x, kernel)[side : side + len(curve)] for x in (curve, np.ones_like(curve)))
    found: np.ndarray = sums / counts
    return found


def arrival(dates: np.ndarray, curve: np.ndarray, level: float) -> float:
    """When a curve is first at the level, linear between its points; infinite if it never is.

    >>> arrival(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 0.0]), 0.5)
    5.0
    """
    above = np.flatnonzero(curve >= level)
    if not len(above):
        return np.inf
    i = int(above[0])
    if i == 0:
        return float(dates[0])
    share = (level - curve[i - 1]) / (curve[i] - curve[i - 1])
    return float(dates[i - 1] + share * (dates[i] - dates[i - 1]))


def used(curves: Curves, rows: np.ndarray, level: float, axis: str) -> float:
    """What these runs' mean curve has used of ``axis`` when it gets to the level; infinite if it does not."""
    return arrival(curves.dates(axis, rows), curves.curve(rows), level)


def reach(system: Curves, base: Curves, axis: str, of_run: bool = False) -> Interval:
    """What a system uses until it has the base's final accuracy, over what the base used.

    Level: the last point of the base's smoothed mean curve. The base's own use is counted up to *its* first
    arrival there (at least one step), so that a curve that is flat at the end is not a gain for anyone; with
    ``of_run`` up to the end of its curve. Where the level is not reached, the end of the system's own curve stands in
    (a lower bound), and ``censored`` is the share of resamples in which that was so. No number (NaN) where the
    base ended no higher than it began: then there is nothing to reach.
    """
    whole = base.curve(base.everyone)
    if whole[-1] <= whole[0]:
        return dict.fromkeys(("value", "low", "high"), np.nan) | {"censored": 0.0, "reached": 0.0}
    unreached: list[bool] = []

    def ratio(own: np.ndarray, others: np.ndarray) -> float:
        level = float(base.curve(others)[-1])
        total = float(base.dates(axis, others)[-1])
        first = total / float(base.dates("step", others)[-1])
        against = total if of_run else max(used(base, others, level, axis), first)
        found = used(system, own, level, axis)
        unreached.append(not np.isfinite(found))
        return min(found, float(system.dates(axis, own)[-1])) / against

    entry = interval(ratio, [system.runs, base.runs])
    return entry | {"censored": float(np.mean(unreached[1:] or unreached)), "reached": float(not unreached[0])}


def accuracy_at(system: Curves, base: Curves, axis: str) -> Interval:
    """A system's smoothed mean accuracy when it has used what the base has at the end of its curve, or at its own end."""

    def read(own: np.ndarray, others: np.ndarray) -> float:
        budget = float(base.dates(axis, others)[-1])
        return float(np.interp(budget, system.dates(axis, own), system.curve(own)))

    return interval(read, [system.runs, base.runs])
