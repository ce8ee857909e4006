"""What came out of a run, in a few numbers read from its tensorboard events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rredcot_plugin.report.curves import REWARD
from rredcot_plugin.report.text import plain

WINDOW = 5
"""Steps averaged at either end."""

HEADER = (
    "estimator",
    f"mean reward, first {WINDOW}",
    f"last {WINDOW} steps",
    "held-out accuracy before",
    "after",
    "seconds per step",
    "rredcot's share",
)

Scalars = Mapping[str, Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class RunSummary:
    """Rewards, accuracies (NaN where a run did not validate), seconds, and a share of step time in [0, 1]."""

    name: str
    reward_start: float
    reward_end: float
    accuracy_before: float
    accuracy_after: float
    seconds_per_step: float
    added_share: float

    def cells(self) -> list[str]:
        """The row under ``HEADER``."""
        return [
            self.name,
            plain(self.reward_start),
            plain(self.reward_end),
            plain(self.accuracy_before),
            plain(self.accuracy_after),
            plain(self.seconds_per_step),
            f"{100 * self.added_share:.1f} %",
        ]


def summarise(name: str, scalars: Scalars) -> RunSummary:
    """Means of the first and last ``WINDOW`` steps, first and last validation, median seconds per step.

    The share of rredcot is Σ timing_s/rredcot_* / Σ timing_s/step over the run.
    """
    rewards = [value for _, value in scalars[REWARD]]
    seconds = [value for _, value in scalars["timing_s/step"]]
    added = [
        value for tag, points in scalars.items() if tag.startswith("timing_s/rredcot_") for _, value in points
    ]
    validations = _accuracies(scalars)
    return RunSummary(
        name=name,
        reward_start=fmean(rewards[:WINDOW]),
        reward_end=fmean(rewards[-WINDOW:]),
        accuracy_before=validations[0] if len(validations) > 1 else math.nan,
        accuracy_after=validations[-1] if len(validations) > 1 else math.nan,
        seconds_per_step=median(seconds),
        added_share=sum(added) / sum(seconds),
    )


def _accuracies(scalars: Scalars) -> list[float]:
    """Accuracy of each validation in order, the plain mean over data sources (they are of equal size)."""
    by_step: dict[int, list[float]] = {}
    for tag, points in scalars.items():
        if tag.startswith("val-core/") and "/acc/mean" in tag:
            for step, value in points:
                by_step.setdefault(step, []).append(value)
    return [fmean(values) for _, values in sorted(by_step.items())]
