"""How strongly a segment is coloured, by its credit or by its advantage, and the control that switches between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rredcot_plugin.report.text import decimals, signed
from rredcot_plugin.report.traces import ScoredSegment, Trace
from rredcot_plugin.report.why import EXPLANATION

FAINT = 0.03
"""Share of the colour scale below which a segment stays uncoloured."""

CLEAR = 0.1
"""Share of the colour scale from which a segment's credit counts as clear."""

DIFFERENCE = (
    "Credit δ is how much a segment changed the expected reward. The advantage is what the policy update multiplies the "
    "log-probs of its tokens with: at λ = 1 it is the reward minus a baseline of the state before the segment, so "
    "every segment of a right trace can have a positive advantage although one of them lost expected reward."
)
NO_ADVANTAGES = "these files hold no advantages"


@dataclass(frozen=True)
class Scales:
    """|credit| and |advantage| of full colour."""

    credit: float = 1.0
    advantage: float = 1.0

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Scales:
        return cls(credit_scale(traces), advantage_scale(traces))


def credit_scale(traces: Sequence[Trace]) -> float:
    """|credit| that gets the full colour, in reward units; 1 if all credit is 0.

    It is the 95th percentile of the traces' largest |credit|, rounded down to one of them: a single trace with an
    outlier does not bleach all others, and is itself drawn at full colour.
    """
    return _scale(_credits(trace) for trace in traces)


def advantage_scale(traces: Sequence[Trace]) -> float:
    """The same of advantages."""
    return _scale(_advantages(trace) for trace in traces)


def _scale(rows: Iterable[list[float]]) -> float:
    peaks = sorted(size for row in rows if (size := max(map(abs, row), default=0.0)) > 0)
    return peaks[int(0.95 * (len(peaks) - 1))] if peaks else 1.0


def _credits(trace: Trace) -> list[float]:
    return [s.credit for s in trace.segments if math.isfinite(s.credit)]


def _advantages(trace: Trace) -> list[float]:
    return [s.advantage for s in trace.segments if math.isfinite(s.advantage)]


def has_credit(trace: Trace) -> bool:
    """Whether any segment has credit: verl's own rollouts have none, a reward that is NaN gives none."""
    return any(math.isfinite(segment.credit) for segment in trace.segments)


def kind_of(number: float) -> str:
    """CSS class of a credit or an advantage: ``neg``, ``pos`` or ``zero`` (0 and NaN)."""
    return "neg" if number < 0 else "pos" if number > 0 else "zero"


def strength(number: float, scale: float) -> float:
    """Opacity of a segment's colour in [0, 1], linear in |number| / scale; faint and unknown ones get 0."""
    share = 0.0 if math.isnan(number) else min(1.0, abs(number) / scale)
    return share if share >= FAINT else 0.0


def disagreement(traces: Sequence[Trace], scales: Scales) -> tuple[int, int]:
    """Of the segments with a clear credit, how many have an advantage of the other sign; and how many there are."""
    clear = [s for trace in traces for s in trace.segments if strength(s.credit, scales.credit) >= CLEAR]
    return sum(_differs(segment) for segment in clear), len(clear)


def _differs(segment: ScoredSegment) -> bool:
    return segment.credit * segment.advantage < 0


def render_legend(traces: Sequence[Trace], scales: Scales) -> str:
    """The control, the scale of each colouring, and in what the two differ; empty where nothing has credit.

    The control works without a script; the page's script remembers it in the address.
    """
    shown = [trace for trace in traces if has_credit(trace)]
    if not shown:
        return ""
    has_advantages = any(map(_advantages, shown))
    reason = "" if has_advantages else f' <span class="note">({NO_ADVANTAGES})</span>'
    state = "" if has_advantages else " disabled"
    why = f'<p class="note">{EXPLANATION}</p>' if any(trace.proposals for trace in shown) else ""
    ramps = _ramp("by-credit", map(_credits, shown), scales.credit)
    other = ""
    if has_advantages:
        ramps += _ramp("by-advantage", map(_advantages, shown), scales.advantage)
        differing, clear = disagreement(shown, scales)
        other = (
            f" Here {differing:,} of {clear:,} segments with a clear credit have an advantage of the other sign."
        )
    return (
        '<div class="legend"><fieldset class="colours"><legend>colour by</legend>'
        '<label><input type="radio" name="colour" value="" checked>credit δ</label>'
        f'<label><input type="radio" name="colour" value="advantage"{state}>advantage{reason}</label></fieldset>{ramps}'
        f'<p class="note">{DIFFERENCE}{other}</p>{why}</div>\n'
    )


def _ramp(kind: str, rows: Iterable[list[float]], scale: float) -> str:
    beyond = any(abs(number) > scale for row in rows for number in row)
    least, most = (" or less", " or more") if beyond else ("", "")
    digits = decimals(scale)
    return (
        f'<span class="scale {kind}">{signed(-scale, digits)}{least}<span class="ramp" aria-hidden="true"></span>'
        f"{signed(scale, digits)}{most}</span>"
    )
