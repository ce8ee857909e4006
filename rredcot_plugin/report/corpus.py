"""What a report shows of any number of rollouts: numbers over all of them, and a bounded choice of traces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rredcot_plugin.report.select import Group

FEW_PROMPTS = 8
"""Calibration has eight folds of prompts; with fewer prompts than these it fits each on less than seven others."""


class Interval(NamedTuple):
    """A mean and its 95 % interval; NaN ends where one prompt alone gives none."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class StepSummary:
    """One training step (or one scored file); means are over its traces, NaN where nothing is known.

    ``value`` is V̂ of the prompt, ``squared_error`` the mean of (R − V̂)² at all boundaries of its traces, ``tokens``
    and ``segments`` those of a trace (NaN for rollouts without segments). ``constant`` is what the squared error would
    be if V̂ were the mean reward of the same boundaries. ``bias`` is the mean of V̂ − R at the boundaries after the
    prompt, ``prompts`` how many prompts the step has, counted up to ``FEW_PROMPTS``. ``credit`` is the mean of |δ| over the
    segments.
    """

    step: int
    traces: int
    reward: float
    reward_std: float
    value: float
    squared_error: float
    tokens: float
    segments: float
    constant: float = math.nan
    bias: Interval | None = None
    prompts: int = 0
    credit: float = math.nan


@dataclass(frozen=True)
class Histogram:
    """``counts[i]`` numbers lay in [``edges[i]``, ``edges[i + 1]``); the last bin holds its upper edge too."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class CalibrationBin:
    """States with low ≤ V̂ < high: how many, their mean V̂ and the mean reward that followed, with an interval.

    ``reward_low`` and ``reward_high``: 95 % interval of the mean reward. States of a trace share its outcome and
    traces of a prompt resemble each other, so the interval counts prompts, not states.
    """

    low: float
    high: float
    states: int
    prompts: int
    value: float
    reward: float
    reward_low: float
    reward_high: float


@dataclass(frozen=True)
class Problem:
    """A line that could not be read, and why."""

    path: str
    line: int
    why: str


@dataclass(frozen=True)
class Corpus:
    """Everything that a report shows.

    ``groups`` is a bounded choice, worst segments first; ``num_traces`` and ``num_groups`` count all that were read,
    and all numbers below are over all of them. ``histograms`` has the keys of ``HISTOGRAMS`` that there are numbers
    for.
    """

    sources: tuple[str, ...]
    groups: tuple[Group, ...]
    num_traces: int
    num_groups: int
    has_credit: bool
    """False where no trace has segment credit (verl's own rollouts): nothing is coloured then."""
    steps: tuple[StepSummary, ...]
    histograms: Mapping[str, Histogram]
    calibration: tuple[CalibrationBin, ...]
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward; None where none is known."""
    problems: tuple[Problem, ...] = ()
    num_problems: int = 0
    """All lines left out; ``problems`` names the first few."""
    bias: Interval | None = None
    """Mean of V̂ − R at the boundaries after the prompts, of all steps; None where there are none."""
    calibrated: bool = True
    """False where all files say that their values are raw (``calibrate: none``)."""
    fitted: bool = True
    """False where all files say that their estimator's values are in reward units already (``critic``, say)."""


HISTOGRAMS = {
    "segment_tokens": "tokens of a segment",
    "credit": "credit of a segment, in reward units",
    "advantage": "advantage of a segment",
    "value": "V̂ at the boundaries",
    "segments": "segments of a trace",
    "reward": "reward of a trace",
}
"""Keys of ``Corpus.histograms`` and what their horizontal axes show."""

WHOLE = frozenset({"segment_tokens", "segments"})
"""Those of integers: the last one in a bin is its upper edge − 1."""
