"""Numbers of steps for the tests of pages."""

from __future__ import annotations

from rredcot_plugin.report.corpus import (
    CalibrationBin,
    Histogram,
    Interval,
    StepSummary,
)

STEPS = tuple(
    StepSummary(
        s, 64, 0.3 + s / 100, 0.4, 0.3, 0.2 - s / 1000, 900 + s, 12.5, bias=Interval(0.1, -0.1, 0.3), constant=0.25
    )
    for s in (10, 20, 30)
)


BINS = (
    CalibrationBin(0.0, 0.5, 900, 40, 0.2, 0.25, 0.1, 0.4),
    CalibrationBin(0.5, 1.0, 9, 2, 0.7, 0.6, 0.2, 0.9),
)


HISTOGRAM = Histogram((-1.0, 0.0, 1.0), (3, 5))
