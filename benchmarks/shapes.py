"""The same rollouts as few prompts with many rollouts each, or as many prompts with few: tables of pages, and their intervals.

    python benchmarks/shapes.py

From runs that learning.py made at one learning rate with 16 rollouts in each step, on tiny models and on a real language
model, and with 64 at rates tuned for each system and shape: steps to the final accuracy of GRPO in the largest groups (its
1.00) on every family. Then, for the text, the same with intervals, and final accuracy minus that of the run with the same
seed, against GRPO in groups of other sizes too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from learn.curves import Curves, curves_of, reach
from learn.runs import rows_of, with_numbers
from learn.statistics import Interval, paired_difference
from learn.summary import shown

FOLDER = Path(__file__).parent / "results"


SYSTEMS = {
    "grpo": "GRPO",
    "reinforce_plus_plus": "REINFORCE++",
    "otb": "verl's optimal token baseline",
    "otb_leave_one_out": "… without the own reward (`baseline: token`)",
    "no_baseline": "no baseline at all",
    "rredcot": "the default",
    "lean": "one baseline per trace (`preset=lean`)",
    "low_variance": "`preset=low_variance`",
}
"""Names of ``learning.py``, and of the page."""

GRPO, ALONE = "grpo", "16 × 1"
ONE_BASELINE = (ALONE, "lean")


@dataclass(frozen=True)
class Study:
    """``results``: prompts × rollouts of each in a step -> result, largest groups first; ``bases``: shapes whose GRPO all are
    compared with, the table with the first one's; ``systems`` with their names on the page."""

    families: tuple[str, ...]
    results: Mapping[str, str]
    bases: tuple[str, ...]
    systems: Mapping[str, str] = field(default_factory=lambda: SYSTEMS)


TINY = Study(
    ("habits", "chains", "parts"),
    {
        "2 × 8": "learning_low_floor",
        "4 × 4": "learning_shape_4",
        "8 × 2": "learning_shape",
        "16 × 1": "learning_shape_1",
    },
    ("2 × 8", "4 × 4", "16 × 1"),
)
SHARES = Study(("shares",), {"4 × 4": "learning_shares_4", "16 × 1": "learning_shares_1"}, ("4 × 4", "16 × 1"))
LANGUAGE_MODEL = Study(
    ("words",), {"4 × 4": "learning_lm_shape_4", "16 × 1": "learning_lm_shape_1"}, ("4 × 4", "16 × 1")
)
TOTALS = Study(
    ("totals",), {"4 × 4": "learning_lm_totals_4", "16 × 1": "learning_lm_totals_1"}, ("4 × 4", "16 × 1")
)
TOTALS_AGAIN = Study(
    ("totals",), {"4 × 4": "learning_lm_totals_again_4", "16 × 1": "learning_lm_totals_again"}, ("4 × 4",)
)
"""Other seeds, on the language model as another processor warms it up: the last bits of its weights differ."""
TOTALS_MORE = Study(
    ("totals",), {"4 × 4": "learning_lm_totals_more_4", "16 × 1": "learning_lm_totals_more"}, ("4 × 4",)
)
"""And as a third one does."""
TOTALS_CONTINUED = Study(
    ("totals",), {"16 × 1": "learning_lm_totals_continued"}, (), {**SYSTEMS, "mc_grpo": "MC-GRPO"}
)
"""There, with continuations from every boundary."""

LARGE = Study(
    ("habits", "chains", "shares"), {"8 × 8": "learning_large", "64 × 1": "learning_large_1"}, ("8 × 8", "64 × 1")
)
"""Four times the rollouts of a step, the rate tuned for each system and shape."""

Found = dict[tuple[str, str], dict[str, Curves]]
"""Shape and system -> family -> runs."""


def found_curves(study: Study, folder: Path = FOLDER) -> Found:
    """The runs of every system that has some, by shape.

    Raises:
        ValueError: runs of one name that differ in more than their seed, or of a family that began with different models:
            a result file keeps all runs that it ever had, and no mean may be of two kinds of them.
    """
    found: Found = {}
    for shape, result in study.results.items():
        rows = [with_numbers(row) for row in rows_of(folder / f"{result}.json", tuning=False)]
        for system in study.systems:
            own = {family: _runs(rows, family, system) for family in study.families}
            if all(own.values()):
                found[shape, system] = {family: curves_of(runs) for family, runs in own.items()}
    for family in study.families:
        models = {digest for own in found.values() for digest in own[family].weights} - {""}
        if len(models) > 1:
            raise ValueError(
                f"{family}: the runs of {', '.join(study.results.values())} began with {len(models)} models"
            )
    return found


def _runs(rows: list[dict], family: str, system: str) -> list[tuple[int, dict]]:
    of = [row for row in rows if (row["identity"]["family"], row["identity"]["system"]) == (family, system)]
    kinds = {json.dumps({**row["identity"], "seed": None}, sort_keys=True) for row in of}
    if len(kinds) > 1:
        raise ValueError(
            f"{family} {system}: runs of {len(kinds)} kinds under one name: {'; '.join(sorted(kinds))}"
        )
    return [(row["identity"]["seed"], row) for row in of]


def table(study: Study, found: Found) -> str:
    """A line per system that has runs, a column per shape; a cell has the steps to GRPO's final accuracy on each family."""
    lines = [f"| credit | {' | '.join(study.results)} |", "| --- " * (len(study.results) + 1) + "|"]
    for system, name in study.systems.items():
        if any((shape, system) in found for shape in study.results):
            cells = [_cell(study, found, (shape, system)) for shape in study.results]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(study: Study, found: Found, key: tuple[str, str]) -> str:
    if key not in found:
        return "–"
    base = found[study.bases[0], GRPO]
    entries = [reach(found[key][family], base[family], "step") for family in study.families]
    return cell_of(entries)


def cell_of(entries: list[Interval]) -> str:
    """Steps to a level over those of the base, as a cell of a table."""
    return " / ".join(f"{entry['value']:.2f}" if entry["reached"] else "> 1" for entry in entries)


def family_table(study: Study, found: Found, shape: str, head: str, cell: Callable[[Curves, Curves], str]) -> str:
    """A line per system that has runs in this shape, a column per family; ``cell`` of its runs and GRPO's in the first base."""
    lines = [f"| {head} | {' | '.join(f'`{family}`' for family in study.families)} |"]
    lines.append("| --- " * (len(study.families) + 1) + "|")
    base = found[study.bases[0], GRPO]
    for (other, system), own in found.items():
        if other == shape:
            cells = [cell(own[family], base[family]) for family in study.families]
            lines.append(f"| {study.systems[system]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains(study: Study, found: Found, base: str) -> str:
    """Of every shape and system, steps to the final accuracy of GRPO in the shape ``base``, and final accuracy minus its, as
    text."""
    lines, grpo = [f"against {base} {GRPO}"], found[base, GRPO]
    for (shape, system), own in found.items():
        steps = [shown(reach(own[f], grpo[f], "step")) for f in study.families]
        gaps = [shown(paired_difference(*map(finals, (own[f], grpo[f]))), 3) for f in study.families]
        lines.append(f"{shape} {system}: {', '.join(steps)}; {', '.join(gaps)}")
    return "\n".join(lines)


def default_minus(parts: Sequence[Found], family: str, other: tuple[str, str]) -> Interval:
    """Final reward of the default with 16 × 1 and the reward at the end minus that of another shape and system, over the seeds
    of all ``parts``; the two runs of a seed began with one model."""
    return difference(parts, family, (ALONE, "rredcot"), other)


def difference(parts: Sequence[Found], family: str, own: tuple[str, str], other: tuple[str, str]) -> Interval:
    """Final reward of one shape and system minus that of another, over the seeds of all ``parts`` that have both."""
    parts = [found for found in parts if own in found and other in found]
    ours, theirs = (
        {seed: last for found in parts for seed, last in finals(found[key][family]).items()}
        for key in (own, other)
    )
    return paired_difference(ours, theirs)


def finals(curves: Curves, measure: str = "accuracy") -> dict[int, float]:
    return dict(zip(curves.seeds.tolist(), curves.final(measure).tolist(), strict=True))


def main() -> None:
    for study in (TINY, SHARES, LARGE, LANGUAGE_MODEL, TOTALS, TOTALS_AGAIN, TOTALS_MORE):
        found = found_curves(study)
        print(table(study, found), *(gains(study, found, base) for base in study.bases), sep="\n\n", end="\n\n")
    parts = [found_curves(study) for study in (TOTALS, TOTALS_AGAIN, TOTALS_MORE)]
    for name, gap in (
        ("the default minus one baseline per trace", default_minus(parts, "totals", ONE_BASELINE)),
        ("the default minus GRPO in groups of four", default_minus(parts, "totals", ("4 × 4", GRPO))),
        (
            "optimal token baseline without the own reward minus GRPO, in groups of four",
            difference(parts, "totals", ("4 × 4", "otb_leave_one_out"), ("4 × 4", GRPO)),
        ),
    ):
        print(f"the language model on totals, {name}: {shown(gap, 3)}")


if __name__ == "__main__":
    main()
