"""The same rollouts as few prompts with many rollouts each, or as many prompts with few: a table of a page, and its intervals.

    python benchmarks/shapes.py

From the runs of ``RESULTS``, which learning.py made at one learning rate with 16 rollouts in each of 120 steps: steps to
the final accuracy of GRPO in groups of 8 (its 1.00) on every family. Then, for the text, the same with intervals, and final
accuracy minus that of the run with the same seed, against GRPO in groups of 8, 4 and 1.
"""

from __future__ import annotations

from pathlib import Path

from learn.curves import Curves, curves_of, reach
from learn.runs import rows_of, with_numbers
from learn.statistics import paired_difference
from learn.summary import shown

FOLDER = Path(__file__).parent / "results"
FAMILIES = ("habits", "chains", "parts")
RESULTS = {
    "2 × 8": "learning_low_floor",
    "4 × 4": "learning_shape_4",
    "8 × 2": "learning_shape",
    "16 × 1": "learning_shape_1",
}
"""Prompts × rollouts of each in a step -> result."""

SYSTEMS = {
    "grpo": "GRPO",
    "reinforce_plus_plus": "REINFORCE++",
    "no_baseline": "no baseline at all",
    "rredcot": "the default",
    "low_variance": "`preset=low_variance`",
}
"""Names of ``learning.py``, and of the page."""

BASE = ("2 × 8", "grpo")
BASES = (BASE, ("4 × 4", "grpo"), ("16 × 1", "grpo"))
"""GRPO as the other results have it, in its best groups, and where it has no baseline."""

Found = dict[tuple[str, str], dict[str, Curves]]
"""Shape and system -> family -> runs."""


def found_curves(folder: Path = FOLDER) -> Found:
    """The runs of every system that has some, by shape."""
    found: Found = {}
    for shape, result in RESULTS.items():
        rows = [with_numbers(row) for row in rows_of(folder / f"{result}.json")]
        for system in SYSTEMS:
            own = {family: _runs(rows, family, system) for family in FAMILIES}
            if all(own.values()):
                found[shape, system] = {family: curves_of(runs) for family, runs in own.items()}
    return found


def _runs(rows: list[dict], family: str, system: str) -> list[tuple[int, dict]]:
    of = [row for row in rows if (row["identity"]["family"], row["identity"]["system"]) == (family, system)]
    return [(row["identity"]["seed"], row) for row in of]


def table(found: Found) -> str:
    """A line per system, a column per shape; a cell has the steps to the final accuracy of ``BASE`` on each family."""
    lines = [f"| credit | {' | '.join(RESULTS)} |", "| --- " * (len(RESULTS) + 1) + "|"]
    for system, name in SYSTEMS.items():
        cells = [_cell(found.get((shape, system)), found[BASE]) for shape in RESULTS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: dict[str, Curves] | None, base: dict[str, Curves]) -> str:
    if own is None:
        return "–"
    found = [reach(own[family], base[family], "step") for family in FAMILIES]
    return " / ".join(f"{entry['value']:.2f}" if entry["reached"] else "> 1" for entry in found)


def gains(found: Found, base: tuple[str, str]) -> str:
    """Of every shape and system, steps to the final accuracy of ``base``, and final accuracy minus its, as text."""
    lines = [f"against {' '.join(base)}"]
    for (shape, system), own in found.items():
        steps = [shown(reach(own[f], found[base][f], "step")) for f in FAMILIES]
        gaps = [shown(paired_difference(*map(_finals, (own[f], found[base][f]))), 3) for f in FAMILIES]
        lines.append(f"{shape} {system}: {', '.join(steps)}; {', '.join(gaps)}")
    return "\n".join(lines)


def _finals(curves: Curves) -> dict[int, float]:
    return dict(zip(curves.seeds.tolist(), curves.final("accuracy").tolist(), strict=True))


def main() -> None:
    found = found_curves()
    print(table(found), *(gains(found, base) for base in BASES), sep="\n\n")


if __name__ == "__main__":
    main()
