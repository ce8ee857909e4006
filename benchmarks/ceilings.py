"""What perfect values would give, and how much of a gain is mere certainty: a table of the page, and its intervals.

    python benchmarks/ceilings.py

From runs of learning.py --greedy on tasks that have one right solution, so that the value of every state is known exactly:
steps to the final accuracy of GRPO with 4 prompts × 4 rollouts, sampled at temperature 1 and greedy. A policy that only
becomes surer of what it does gains in the first and not in the second.
"""

from __future__ import annotations

from dataclasses import replace

from learn.curves import Curves, reach
from learn.statistics import paired_difference
from learn.summary import shown
from shapes import GRPO, Found, Study, cell_of, family_table, finals, found_curves

SYSTEMS = {
    "grpo": "stock GRPO: no baseline",
    "rredcot": "the default",
    "true_baseline": "true values as the baseline",
    "true_credit": "true values as credit, λ = 0",
}
GROUPS, BASE = "4 × 4", "16 × 1"
STUDY = Study(
    ("chains", "shares"),
    {
        GROUPS: "learning_greedy_4",
        BASE: "learning_greedy_1",
        "16 × 1 at twice the rate": "learning_greedy_1_faster",
    },
    (GROUPS,),
    SYSTEMS,
)
MEASURES = ("accuracy", "greedy")


def by(measure: str, curves: Curves) -> Curves:
    """The runs with ``measure`` as what is called accuracy."""
    return replace(curves, evals={**curves.evals, "accuracy": curves.evals[measure]})


def table(found: Found) -> str:
    """A line per system at the rate of GRPO in groups; a cell has the steps to that one's final accuracy, sampled / greedy."""
    return family_table(STUDY, found, BASE, "credit", _cell)


def _cell(own: Curves, base: Curves) -> str:
    return cell_of([reach(by(measure, own), by(measure, base), "step") for measure in MEASURES])


def intervals(found: Found) -> str:
    """The same with intervals, with final accuracies minus those of the default with the same seeds, and entropies."""
    lines = []
    for (shape, system), own in found.items():
        for family, curves in own.items():
            base, default = found[GROUPS, GRPO][family], found[BASE, "rredcot"][family]
            lines.append(f"{shape} {system} {family}: entropy {curves.trained['entropy'][:, -10:].mean():.3f}")
            for measure in MEASURES:
                mine, grpos, defaults = (by(measure, curves) for curves in (curves, base, default))
                gap = paired_difference(finals(mine), finals(defaults))
                lines.append(
                    f"  {measure}: final {mine.final('accuracy').mean():.3f}, steps {shown(reach(mine, grpos, 'step'))}, "
                    f"of the default's {shown(reach(mine, defaults, 'step'))}, minus it {shown(gap, 3)}"
                )
    return "\n".join(lines)


def main() -> None:
    found = found_curves(STUDY)
    print(table(found), intervals(found), sep="\n\n")


if __name__ == "__main__":
    main()
