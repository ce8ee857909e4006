"""Shapers: optional steps between redistribution and advantages, each of which keeps the sum. One a file.

A shaper is a callable ``(deltas, segments, outcome, stats) -> deltas``, all (B, S) and (B,); options go to
its constructor. Shaping looks at all δ of a trace, so λ = 1 is no longer unbiased with it.
"""

from rredcot_plugin.credit.shapers.contribution import Contribution
from rredcot_plugin.credit.shapers.error_penalty import ErrorPenalty
from rredcot_plugin.credit.shapers.smoothing import Smoothing

__all__ = ["Contribution", "ErrorPenalty", "Smoothing"]
