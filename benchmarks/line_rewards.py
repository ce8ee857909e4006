"""What it is worth to tell the trainer which line earned what: a table of the page, and its intervals.

    python benchmarks/line_rewards.py

From runs of learning.py on tasks whose reward is a sum over lines. The reward of a response is the same in every row; in some
it stands on the lines that earned it, in the others at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from learn.curves import Curves, accuracy_at, reach
from learn.statistics import paired_difference
from learn.summary import shown
from shapes import (
    ALONE,
    GRPO,
    ONE_BASELINE,
    TOTALS_CONTINUED,
    Found,
    Study,
    cell_of,
    default_minus,
    difference,
    family_table,
    finals,
    found_curves,
)

SYSTEMS = {
    "grpo": "GRPO",
    "rloo": "RLOO",
    "otb_leave_one_out": "the optimal token baseline without the own reward",
    "rredcot": "at the end: the default",
    "lean": "at the end: one baseline per trace (`preset=lean`)",
    "reinforce_plus_plus": "at the end: REINFORCE++",
    "mc_grpo": "at the end: MC-GRPO",
    "line_rewards": "on its lines: the default",
    "line_rewards_lam50": "on its lines: `lam_turn_rewards: 0.5`",
    "line_rewards_lam0": "on its lines: `lam_turn_rewards: 0`",
    "line_rewards_reinforce_plus_plus": "on its lines: REINFORCE++",
}
GROUPS = "4 × 4"
STUDY = Study(
    ("shares", "rungs"), {GROUPS: "learning_line_rewards_4", ALONE: "learning_line_rewards_1"}, (GROUPS,), SYSTEMS
)

TRAPS = Study(("traps",), {ALONE: "learning_traps_1"}, (), SYSTEMS)
"""With one rollout of each prompt alone: compared with the default that is told sums."""
LANGUAGE_MODEL = Study(
    ("ranks",), {GROUPS: "learning_lm_ranks_4", ALONE: "learning_lm_ranks_1"}, (GROUPS,), SYSTEMS
)
AGAIN = Study(
    ("ranks",), {GROUPS: "learning_lm_ranks_again_4", ALONE: "learning_lm_ranks_again"}, (GROUPS,), SYSTEMS
)
"""Other seeds, on the language model as another processor warms it up: the last bits of its weights differ."""
MORE = Study(("ranks",), {GROUPS: "learning_lm_ranks_more_4", ALONE: "learning_lm_ranks_more"}, (GROUPS,), SYSTEMS)
"""And as a third one does."""
FASTER = Study(
    ("ranks",), {GROUPS: "learning_lm_ranks_faster_4", ALONE: "learning_lm_ranks_faster_1"}, (), SYSTEMS
)
"""The first of those seeds at twice the rate."""


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


def ends(study: Study, found: Found) -> str:
    """A line per shape and system: the final reward, how many traces have no mistake, and both minus those of the default with
    16 × 1 that sees the reward at the end."""
    (family,) = study.families
    lines = [
        "| reward | final reward, minus the default's | without a mistake, minus the default's |",
        "| --- | --- | --- |",
    ]
    base = found[ALONE, "rredcot"][family]
    for (shape, system), own in found.items():
        cells = [_end(own[family], base, measure) for measure in ("accuracy", "all_right")]
        lines.append(f"| {shape}, {study.systems[system]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _end(own: Curves, base: Curves, measure: str) -> str:
    last = f"{own.final(measure).mean():.2f}"
    return (
        last
        if own is base
        else f"{last}, {shown(paired_difference(finals(own, measure), finals(base, measure)), 3)}"
    )


def continuations(parts: Sequence[Found], family: str) -> str:
    """What MC-GRPO's four continuations per boundary give on the language model, against the default of the same seeds: final
    reward over all parts, tokens and seconds of a run, and the reward where it has used up the default's tokens or seconds."""
    parts = [found for found in parts if (ALONE, "mc_grpo") in found]
    runs = [[found[ALONE, system][family] for found in parts] for system in ("mc_grpo", "rredcot")]

    def over_runs(value: Callable[[Curves, Curves], float]) -> float:
        return float(np.average(list(map(value, *runs)), weights=[own.runs for own in runs[0]]))

    def uses(axis: str) -> str:
        times = over_runs(lambda own, default: own.spent[axis][:, -1].mean() / default.spent[axis][:, -1].mean())
        as_many = over_runs(lambda own, default: accuracy_at(own, default, axis)["value"])
        return f"{axis} {times:.1f} times, reward for as many {as_many:.2f}"

    gap = shown(difference(parts, family, (ALONE, "mc_grpo"), (ALONE, "rredcot")), 3)
    return f"MC-GRPO minus the default on {family}: {gap}; {uses('tokens')}; {uses('seconds')}"


def groups(parts: Sequence[Found]) -> str:
    """A line per system but GRPO in groups of four on the language model: its final reward minus GRPO's there, over all parts."""
    systems = [system for shape, system in parts[0] if shape == GROUPS and system != GRPO]
    gaps = {system: difference(parts, "ranks", (GROUPS, system), (GROUPS, GRPO)) for system in systems}
    return "\n".join(f"{SYSTEMS[system]}: minus GRPO's {shown(gap, 3)}" for system, gap in gaps.items())


def main() -> None:
    found = found_curves(STUDY)
    print(table(found), intervals(found), sep="\n\n")
    for study in (TRAPS, LANGUAGE_MODEL):
        own = found_curves(study)
        print("", ends(study, own), *([intervals(own)] if study.bases else []), sep="\n")
    parts = [found_curves(study) for study in (LANGUAGE_MODEL, AGAIN, MORE)]
    print(f"\n{continuations(parts, 'ranks')}")
    print(continuations([found_curves(TOTALS_CONTINUED)], "totals"))
    for (shape, system), own in found_curves(FASTER).items():
        last = own["ranks"].final("accuracy").tolist()
        print(f"at twice the rate {shape} {system}: {', '.join(f'{reward:.2f}' for reward in last)}")
    print(f"\nin groups of four, other seeds:\n{groups(parts[1:])}")
    for name, other in (("one baseline per trace", ONE_BASELINE), ("GRPO in groups of four", (GROUPS, GRPO))):
        gaps = [shown(default_minus(some, "ranks", other), 3) for some in (parts[1:], parts)]
        print(f"the default minus {name}, other seeds: {gaps[0]}, all: {gaps[1]}")


if __name__ == "__main__":
    main()
