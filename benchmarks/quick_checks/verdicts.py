"""A finding of the gate, and how far from a committed number is too far.

exact   what theory or a seed fixes: within ``allowed``, else WRONG
slower  a ratio of times within one run: up to ``NOISE`` times the committed upper bound is the same, up to ``FAR``
        times is noise of a busy machine, and more is FAR OUTSIDE
score   a quality, higher is better: below the committed interval by twice its lower half is FAR OUTSIDE
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quick_checks.committed import Interval

SAME, BETTER, WORSE = "same", "better", "worse (noise)"
FAR_OUTSIDE, WRONG, NOTHING = "FAR OUTSIDE", "WRONG", "no committed number"
FAILING = (FAR_OUTSIDE, WRONG)
NOISE, FAR = 1.25, 2.0


@dataclass(frozen=True)
class Finding:
    """One row: what was measured, what it is compared with (``source``: file and entry), and how it came out."""

    name: str
    verdict: str
    source: str
    allowed: str = ""
    measured: Interval | None = None
    committed: Interval | None = None
    note: str = ""


def exactly(value: float) -> Interval:
    return {"value": value, "low": value, "high": value}


def exact(name: str, gap: float, allowed: float, source: str, note: str = "") -> Finding:
    """``gap`` is the largest difference from what must come out; a NaN is WRONG."""
    verdict = SAME if gap <= allowed else WRONG
    measured = exactly(gap) if math.isfinite(gap) else None
    return Finding(name, verdict, source, f"≤ {allowed:g}", measured, exactly(0.0), note)


def slower(name: str, measured: Interval, committed: Interval | None, source: str) -> Finding:
    """``measured``: a ratio of seconds, smaller is better."""
    if committed is None:
        return nothing(name, source, measured)
    same, far = NOISE * committed["high"], FAR * committed["high"]
    value = measured["value"]
    verdict = WORSE if value > same else BETTER if value < committed["low"] / NOISE else SAME
    allowed = f"same ≤ {same:.3g}, far > {far:.3g}"
    return _compared(name, verdict, value > far, source, allowed, measured, committed)


def score(name: str, measured: Interval, committed: Interval | None, source: str) -> Finding:
    """``measured``: larger is better."""
    if committed is None:
        return nothing(name, source, measured)
    value, low = measured["value"], committed["low"]
    far = low - 2 * (committed["value"] - low)
    verdict = WORSE if value < low else BETTER if value > committed["high"] else SAME
    allowed = f"same ≥ {low:.3g}, far < {far:.3g}"
    return _compared(name, verdict, value < far, source, allowed, measured, committed)


def _compared(
    name: str, verdict: str, is_far: bool, source: str, allowed: str, measured: Interval, committed: Interval
) -> Finding:
    if not all(map(math.isfinite, measured.values())):
        return Finding(name, WRONG, source, allowed, None, committed, f"measured {measured}: not a number")
    return Finding(name, FAR_OUTSIDE if is_far else verdict, source, allowed, measured, committed)


def nothing(name: str, source: str, measured: Interval | None = None, note: str = "") -> Finding:
    """There is nothing to compare with, which is said and not passed over."""
    return Finding(name, NOTHING, source, "", measured, None, note)
