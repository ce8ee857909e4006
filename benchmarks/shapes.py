"""The same rollouts as few prompts with many rollouts each, or as many prompts with few: tables, the first of a page.

    python benchmarks/shapes.py

From the runs of ``RESULTS``, which learning.py made at one learning rate with 16 rollouts in each of 120 steps: steps to
the final accuracy of GRPO (its 1.00), then, for the text, final accuracy minus that of GRPO's run with the same seed; each for
GRPO in groups of 8, and for GRPO in the shape where it learns fastest.
"""

from __future__ import annotations

from pathlib import Path

from learn.curves import Curves, curves_of, reach
from learn.runs import rows_of, with_numbers
from learn.statistics import paired_difference
from learn.summary import shown

FOLDER = Path(__file__).parent / "results"
FAMILIES = ("habits", "chains", "parts")
RESULTS = {"2 × 8": "learning_low_floor", "4 × 4": "learning_shape_4", "8 × 2": "learning_shape"}
"""Prompts × rollouts of each in a step -> result."""

SYSTEMS = {
    "grpo": "GRPO",
    "no_baseline": "no baseline at all",
    "rredcot": "the default",
    "low_variance": "`preset=low_variance`",
}
"""Names of ``learning.py``, and of the page."""

BASE, BEST = ("2 × 8", "grpo"), ("4 × 4", "grpo")
"""GRPO as the other results have it, and in the best of these shapes."""

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


def table(found: Found, base: tuple[str, str]) -> str:
    """A line per shape and system, a column per family: steps to the final accuracy of ``base``."""
    lines = [
        f"| prompts × rollouts | credit | {' | '.join(f'`{family}`' for family in FAMILIES)} |",
        "| --- " * 5 + "|",
    ]
    for (shape, system), own in found.items():
        lines.append(f"| {shape} | {SYSTEMS[system]} | {' | '.join(_steps(own, found[base]))} |")
    return "\n".join(lines)


def _steps(own: dict[str, Curves], base: dict[str, Curves]) -> list[str]:
    return ["1.00" if own is base else shown(reach(own[family], base[family], "step")) for family in FAMILIES]


def gains(found: Found, base: tuple[str, str]) -> str:
    """Final accuracy minus that of ``base``, of every shape and system, as text."""
    lines = [f"against {' '.join(base)}"]
    for (shape, system), own in found.items():
        gaps = [shown(paired_difference(*map(_finals, (own[f], found[base][f]))), 3) for f in FAMILIES]
        lines.append(f"{shape} {system}: {', '.join(gaps)}")
    return "\n".join(lines)


def _finals(curves: Curves) -> dict[int, float]:
    return dict(zip(curves.seeds.tolist(), curves.final("accuracy").tolist(), strict=True))


def main() -> None:
    found = found_curves()
    bases = (BASE, BEST)
    print(*(table(found, base) for base in bases), *(gains(found, base) for base in bases), sep="\n\n")


if __name__ == "__main__":
    main()
