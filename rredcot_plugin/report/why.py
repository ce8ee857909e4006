"""Where values come from: the answers that were probed along a trace, and why siblings differ in V̂ of their prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rredcot_plugin.report.text import escape, plain
from rredcot_plugin.report.traces import Proposal, Trace

LONGEST = 120
"""Characters of an answer."""

ALIKE = 2e-3
"""Numbers of a dump closer than this are the same for ``sibling_note``."""

LEAVE_ONE_OUT = (
    "V̂ of this prompt differs between its traces: each has the mean reward of the others (leave-one-out)."
)
MEASURED = "V̂ of this prompt differs between its traces: it was estimated for each trace."

EXPLANATION = (
    "“Why” lists the answers that were probed: their probabilities are how probable the model finds each one if it had "
    "to answer at a boundary (n/a where it was not asked), their rewards the mean of the other traces that gave it."
)


def render_why(trace: Trace, right_above: float) -> str:
    """A folded table of the probed answers with what each is worth and its probability at every boundary.

    Without the page's script it lists the probabilities of all boundaries; the script shows those before and after
    the segment that is pointed at instead. Empty for a trace without probed answers.
    """
    if not trace.proposals:
        return ""
    rows = "".join(_row(proposal, right_above) for proposal in trace.proposals)
    count = len(trace.proposals)
    return (
        f'<details class="why"><summary>why: {count} probed answer{"" if count == 1 else "s"}</summary>'
        '<div class="scroll"><table><thead><tr><th scope="col">answer</th><th scope="col">its reward</th>'
        '<th scope="col" class="each">probability at each boundary</th><th scope="col" class="side">before</th>'
        f'<th scope="col" class="side">after</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _row(proposal: Proposal, right_above: float) -> str:
    text = proposal.text if len(proposal.text) <= LONGEST else proposal.text[:LONGEST] + " …"
    mark = "" if math.isnan(proposal.utility) else "✓ " if proposal.utility > right_above else "✗ "
    source = "" if proposal.kind.startswith("group") else f' <span class="note">({escape(proposal.kind)})</span>'
    each = " ".join(map(probability, proposal.probabilities))
    return (
        f'<tr><td class="answer">{escape(text)}{source}</td><td>{mark}{plain(proposal.utility)}</td>'
        f'<td class="each">{each}</td><td class="side"></td><td class="side"></td></tr>'
    )


def probability(number: float) -> str:
    """A probability with three decimals, small ones in powers of ten.

    >>> probability(0.25), probability(1.58e-14), probability(float("nan"))
    ('0.250', '1.6e−14', 'n/a')
    """
    if math.isnan(number):
        return "n/a"
    if 0 < number < 0.0005:
        return f"{number:.1e}".replace("e-0", "e-").replace("-", "−")
    return f"{number:.3f}"


def sibling_note(traces: Sequence[Trace], size: int) -> str:
    """Why traces of one prompt have different V̂ at its end, in a line; empty where they have the same.

    A leave-one-out mean of ``size`` traces is V̂ = (size·m − R)/(size − 1), so V̂ + R/(size − 1) is the same for all.
    """
    known = [(t.segments[0].value, t.reward) for t in traces if t.segments]
    known = [(value, reward) for value, reward in known if math.isfinite(value) and math.isfinite(reward)]
    if len(known) < 2 or _width([value for value, _ in known]) <= ALIKE:
        return ""
    shifted = [value + reward / (size - 1) for value, reward in known] if size > 1 else []
    return LEAVE_ONE_OUT if shifted and _width(shifted) <= ALIKE else MEASURED


def _width(numbers: Sequence[float]) -> float:
    return max(numbers) - min(numbers)
