"""Numbers over all traces in one pass: means of each step, histograms, calibration."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.report.corpus import (
    FEW_PROMPTS,
    HISTOGRAMS,
    WHOLE,
    CalibrationBin,
    Histogram,
    Interval,
    StepSummary,
)
from rredcot_plugin.report.histogram import StreamingHistogram
from rredcot_plugin.report.reliability import Reliability, half_width
from rredcot_plugin.report.traces import Trace

FINEST = dict.fromkeys(WHOLE, 1.0)
"""Least width of a bin for counts; other numbers are dumped with 6 decimals."""

BUFFERED = 65_536

BUCKETS = 64
"""Clusters of prompts of a step, for the interval of its bias."""


@dataclass(slots=True)
class _Mean:
    """Mean and population variance of what was added, unknown numbers left out (Welford)."""

    count: int = 0
    mean: float = math.nan
    squares: float = 0.0

    def add(self, number: float) -> None:
        if not math.isfinite(number):
            return
        self.count += 1
        before = 0.0 if self.count == 1 else self.mean
        self.mean = before + (number - before) / self.count
        if self.count > 1:
            self.squares += (number - before) * (number - self.mean)

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else math.nan


class _Bias:
    """Sums of V̂ − R by prompt, in ``BUCKETS`` by a hash of its name: prompts that share one count as one cluster."""

    __slots__ = ("counts", "sums")

    def __init__(self, counts: Sequence[float] = (), sums: Sequence[float] = ()) -> None:
        self.counts = array("d", counts or [0.0] * BUCKETS)
        self.sums = array("d", sums or [0.0] * BUCKETS)

    def add(self, uid: str, differences: Sequence[float]) -> None:
        bucket = zlib.crc32(uid.encode("utf-8", "surrogatepass")) % BUCKETS
        self.counts[bucket] += len(differences)
        self.sums[bucket] += sum(differences)

    def interval(self) -> Interval | None:
        counts, sums = np.array(self.counts), np.array(self.sums)
        counts, sums = counts[counts > 0], sums[counts > 0]
        if not len(counts):
            return None
        mean, half = float(sums.sum() / counts.sum()), half_width(counts, sums)
        return Interval(mean, mean - half, mean + half)


class _Step:
    __slots__ = (
        "bias", "credit", "of_states", "prompts", "reward", "segments", "squared_error", "tokens", "traces", "value",
    )  # fmt: skip

    def __init__(self) -> None:
        self.traces = 0
        self.reward, self.value, self.squared_error = _Mean(), _Mean(), _Mean()
        self.tokens, self.segments, self.of_states = _Mean(), _Mean(), _Mean()
        self.bias, self.credit = _Bias(), _Mean()
        self.prompts: set[str] = set()

    def add(self, trace: Trace) -> None:
        self.traces += 1
        self.reward.add(trace.reward)
        if len(self.prompts) < FEW_PROMPTS:
            self.prompts.add(trace.uid)
        if not trace.has_segments:
            return
        self.tokens.add(sum(segment.tokens for segment in trace.segments))
        self.segments.add(len(trace.segments))
        if trace.segments:
            self.value.add(trace.segments[0].value)
        for segment in trace.segments:
            self.credit.add(abs(segment.credit))
        differences = [own.value - followed for own, followed in zip(trace.segments, trace.followed, strict=True)]
        for difference, followed in zip(differences, trace.followed, strict=True):
            self.squared_error.add(difference**2)
            if math.isfinite(difference):
                self.of_states.add(followed)
        self.bias.add(trace.uid, [x for x in differences[1:] if math.isfinite(x)])

    def summary(self, step: int) -> StepSummary:
        return StepSummary(
            step=step,
            traces=self.traces,
            reward=self.reward.mean,
            reward_std=self.reward.std,
            value=self.value.mean,
            squared_error=self.squared_error.mean,
            tokens=self.tokens.mean,
            segments=self.segments.mean,
            constant=self.of_states.std**2,
            bias=self.bias.interval(),
            prompts=len(self.prompts),
            credit=self.credit.mean,
        )


class Statistics:
    """Add every trace once; memory grows with the number of steps only."""

    def __init__(self) -> None:
        self.has_credit = False
        self.traces = 0
        self._steps: dict[int, _Step] = {}
        self._histograms = {name: StreamingHistogram(FINEST.get(name, 1e-6)) for name in HISTOGRAMS}
        self._waiting = {name: array("d") for name in HISTOGRAMS}
        self._reliability = Reliability()
        self._least, self._most = math.inf, -math.inf

    def add(self, trace: Trace) -> None:
        self.traces += 1
        self._steps.setdefault(trace.step, _Step()).add(trace)
        self._count("reward", (trace.reward,))
        if math.isfinite(trace.reward):
            self._least, self._most = min(self._least, trace.reward), max(self._most, trace.reward)
        if not trace.has_segments:
            return
        credits = [segment.credit for segment in trace.segments]
        values = [segment.value for segment in trace.segments]
        self.has_credit = self.has_credit or any(credit == credit for credit in credits)
        self._count("segments", (len(credits),))
        self._count("credit", credits)
        self._count("value", values)
        self._count("advantage", [segment.advantage for segment in trace.segments])
        self._count("segment_tokens", [segment.tokens for segment in trace.segments])
        self._reliability.add(values, trace.followed, trace.prompt)

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> Statistics:
        """The statistics of traces that are in memory."""
        found = cls()
        for trace in traces:
            found.add(trace)
        return found

    def steps(self) -> tuple[StepSummary, ...]:
        """In order of the steps."""
        return tuple(self._steps[step].summary(step) for step in sorted(self._steps))

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Lowest and highest reward; None where none is known."""
        return (self._least, self._most) if self._least <= self._most else None

    def bias(self) -> Interval | None:
        """Mean of V̂ − R, R the reward from there on, at the boundaries after the prompts, of all steps."""
        steps = [step.bias for step in self._steps.values()]
        counts = [count for bias in steps for count in bias.counts]
        return _Bias(counts, [total for bias in steps for total in bias.sums]).interval()

    def histograms(self) -> dict[str, Histogram]:
        """Those that there are numbers for."""
        for name, waiting in self._waiting.items():
            self._flush(name, waiting)
        finished = {name: histogram.finish() for name, histogram in self._histograms.items()}
        return {name: histogram for name, histogram in finished.items() if histogram is not None}

    def calibration(self) -> tuple[CalibrationBin, ...]:
        return self._reliability.finish()

    def _count(self, name: str, numbers: Iterable[float]) -> None:
        waiting = self._waiting[name]
        waiting.extend(numbers)
        if len(waiting) >= BUFFERED:
            self._flush(name, waiting)

    def _flush(self, name: str, waiting: array[float]) -> None:
        self._histograms[name].add(np.array(waiting))
        del waiting[:]
