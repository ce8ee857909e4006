"""What it is worth to tell the trainer which line earned what: a table of the page, and its intervals.

    python benchmarks/line_rewards.py

From runs of learning.py on tasks whose reward is a sum over lines. The reward of a response is the same in every row; in some
it stands on the lines that earned it, in the others at the end.
"""

from __future__ import annotations

from learn.curves import Curves, reach
from learn.statistics import paired_difference
from learn.summary import shown
from shapes import GRPO, Found, Study, cell_of, family_table, finals, found_curves

SYSTEMS = {
    "grpo": "GRPO",
    "rredcot": "at the end: the default",
    "reinforce_plus_plus": "at the end: REINFORCE++",
    "line_rewards": "on its lines: the default",
    "line_rewards_lam50": "on its lines: `lam_turn_rewards: 0.5`",
    "line_rewards_reinforce_plus_plus": "on its lines: REINFORCE++",
}
GROUPS, ALONE = "4 × 4", "16 × 1"
STUDY = Study(
    ("shares", "rungs"), {GROUPS: "learning_line_rewards_4", ALONE: "learning_line_rewards_1"}, (GROUPS,), SYSTEMS
)


def table(found: Found) -> str:
    """A line per system with one rollout of each prompt: steps to the final accuracy of GRPO in groups."""
    return family_table(STUDY, found, ALONE, "reward, with 16 × 1", _cell)


def _cell(own: Curves, base: Curves) -> str:
    return cell_of([reach(own, base, "step")])


def intervals(found: Found) -> str:
    """The same with intervals, and final accuracies minus those of the default with the reward at the end."""
    lines = []
    for (shape, system), own in found.items():
        for family, curves in own.items():
            base, default = found[GROUPS, GRPO][family], found[ALONE, "rredcot"][family]
            gaps = [paired_difference(finals(curves), finals(other)) for other in (default, base)]
            lines.append(
                f"{shape} {system} {family}: final {curves.final('accuracy').mean():.3f}, steps "
                f"{shown(reach(curves, base, 'step'))}, of the default's {shown(reach(curves, default, 'step'))}, "
                f"minus it {shown(gaps[0], 3)}, minus GRPO's {shown(gaps[1], 3)}"
            )
    return "\n".join(lines)


def main() -> None:
    found = found_curves(STUDY)
    print(table(found), intervals(found), sep="\n\n")


if __name__ == "__main__":
    main()
