"""All numbers of the benchmark by name, and which targets are met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from learn.curves import Curves, accuracy_at, reach
from learn.statistics import Interval, improvement_interval, interval, iqm_interval, paired_difference

Found = Mapping[str, Mapping[str, Curves]]
"""Family -> system -> its runs; only what has finished runs."""

Summary = dict[str, Interval]
BASE, DEAR, OURS = "grpo", "mc_grpo", "rredcot"
TARGETS = {"steps_to_grpo_final": 0.70, "time_vs_mc_grpo": 0.40}
CONTROLS = ("control_no_reward", "control_shuffled_values")

LEFT_OUT = 0.025
"""The share of resamples above a 95% interval."""


def summarize(found: Found) -> Summary:
    """Entries ``family/system/measure``, ``all/system/measure`` over families, and the two headlines."""
    summary: Summary = {}
    for family, systems in found.items():
        for name, curves in systems.items():
            entries = own_entries(curves)
            if BASE in systems:
                entries |= against_entries(curves, systems[BASE], "grpo")
                entries |= paired_entries(curves, systems[BASE])
            if DEAR in systems:
                entries |= against_entries(curves, systems[DEAR], "mc_grpo")
            summary |= {f"{family}/{name}/{key}": entry for key, entry in entries.items()}
    for name in dict.fromkeys(name for systems in found.values() for name in systems):
        if all(name in systems and BASE in systems for systems in found.values()):
            summary |= {f"all/{name}/{key}": entry for key, entry in over_families(found, name).items()}
    return summary | headlines(summary, list(found))


def own_entries(curves: Curves) -> Summary:
    """What a system's runs are by themselves. ``sd_*``: between seeds, the mean over steps."""
    everyone = [curves.runs]
    seconds = curves.spent["seconds"][:, -1]
    tokens = curves.spent["tokens"][:, -1]
    return {
        "final_accuracy": iqm_interval([curves.final("accuracy")]),
        "final_all_right": iqm_interval([curves.final("all_right")]),
        "final_lucky": iqm_interval([curves.final("lucky")]),
        "area": iqm_interval([curves.area]),
        "sd_final_accuracy": interval(lambda rows: _sd(curves.final("accuracy")[rows]), everyone, centred=True),
        "sd_reward": interval(lambda rows: curves.deviation("accuracy", rows), everyone, centred=True),
        "sd_grad_norm": interval(lambda rows: curves.deviation("grad_norm", rows), everyone, centred=True),
        "grad_norm": interval(lambda rows: float(curves.trained["grad_norm"][rows].mean()), everyone),
        "entropy_end": interval(lambda rows: float(curves.trained["entropy"][rows, -1].mean()), everyone),
        "seconds": interval(lambda rows: float(seconds[rows].mean()), everyone),
        "generated_tokens": interval(lambda rows: float(tokens[rows].mean()), everyone),
        "runs": _exact(curves.runs),
        "failed": _exact(len(curves.reasons)),
    }


def against_entries(curves: Curves, base: Curves, name: str) -> Summary:
    """What a system uses to get to the base's final accuracy, and its accuracy at the base's budget; seconds only where
    both ran on one kind of processor."""
    entries = {
        f"steps_to_{name}_final": reach(curves, base, "step"),
        f"steps_to_{name}_final_of_run": reach(curves, base, "step", of_run=True),
        f"tokens_to_{name}_final": reach(curves, base, "tokens"),
        f"accuracy_at_{name}_tokens": accuracy_at(curves, base, "tokens"),
    }
    if clocks_agree(curves, base):
        entries |= {
            f"seconds_to_{name}_final": reach(curves, base, "seconds"),
            f"accuracy_at_{name}_seconds": accuracy_at(curves, base, "seconds"),
        }
    return entries


def clocks_agree(one: Curves, other: Curves) -> bool:
    """Whether seconds of both can be compared."""
    return len(one.cpus | other.cpus) == 1


def paired_entries(curves: Curves, base: Curves) -> Summary:
    """Accuracy minus the base's, at the end and on the way, seed by seed."""
    measures = {"final": lambda c: c.final("accuracy"), "area": lambda c: c.area}
    return {
        f"{name}_minus_grpo": paired_difference(
            *(dict(zip(c.seeds.tolist(), measure(c).tolist(), strict=True)) for c in (curves, base))
        )
        for name, measure in measures.items()
        if curves is not base
    }


def over_families(found: Found, name: str) -> Summary:
    """One system over all families, resampled within each."""
    own = [systems[name] for systems in found.values()]
    base = [systems[BASE] for systems in found.values()]
    finals = [curves.final("accuracy") for curves in own]
    return {
        "final_accuracy": iqm_interval(finals),
        "area": iqm_interval([curves.area for curves in own]),
        "final_better_than_grpo": improvement_interval(finals, [curves.final("accuracy") for curves in base]),
        "area_better_than_grpo": improvement_interval([c.area for c in own], [c.area for c in base]),
    }


def headlines(summary: Summary, families: Sequence[str]) -> Summary:
    """The two measures with a target, of our default, on the family where they are worst (largest)."""
    names = {"steps_to_grpo_final": "steps_to_grpo_final", "time_vs_mc_grpo": "seconds_to_mc_grpo_final"}
    found = {}
    for headline, measure in names.items():
        entries = [summary.get(f"{family}/{OURS}/{measure}") for family in families]
        known = [entry for entry in entries if entry is not None]
        if known and len(known) == len(families) and all(np.isfinite(entry["value"]) for entry in known):
            found[headline] = max(known, key=lambda entry: entry["value"])
    return found


def verdicts(summary: Summary) -> list[str]:
    """One line for each target: MET where the value is, and whether the interval is too."""
    lines = []
    for name, target in TARGETS.items():
        entry = summary.get(name)
        if entry is None:
            lines.append(f"{name}: target {target}, no number on every family yet")
            continue
        met = entry["value"] <= target and entry["reached"] == 1.0
        sure = ", the interval too" if met and entry["high"] <= target else ""
        lines.append(f"{name}, worst family: {shown(entry)}, target {target}: {'MET' if met else 'MISSED'}{sure}")
    return lines


def shown(entry: Interval, digits: int = 2) -> str:
    """``.71 [.60, .83]``; with > where a level was not reached: by the runs, or by more resamples than lie above an
    interval. Without an interval where hardly a resample reached it.

    >>> shown({"value": 0.8, "low": 0.5, "high": 1.0, "reached": 1.0, "censored": 0.03})
    '0.80 [0.50, > 1.00]'
    """
    if not math.isfinite(entry["value"]):
        return "–"
    mark = "> " if entry.get("reached", 1.0) == 0.0 else ""
    value, never = f"{mark}{entry['value']:.{digits}f}", entry.get("censored", 0.0)
    if not math.isfinite(entry["low"]) or never > 1 - LEFT_OUT:
        return value
    return f"{value} [{entry['low']:.{digits}f}, {'> ' if never > LEFT_OUT else ''}{entry['high']:.{digits}f}]"


def without_unknown(summary: Summary) -> Summary:
    """JSON has no NaN: bounds that are unknown (one run only) are left out with their entry, which is said."""
    unknown = [name for name, entry in summary.items() if not all(map(math.isfinite, entry.values()))]
    if unknown:
        print(f"{len(unknown)} entries have no number or no interval yet: {', '.join(unknown[:4])}, …")
    return {name: entry for name, entry in summary.items() if name not in unknown}


def _sd(numbers: np.ndarray) -> float:
    return float(numbers.std(ddof=1)) if len(numbers) > 1 else np.nan


def _exact(number: int) -> Interval:
    return dict.fromkeys(("value", "low", "high"), float(number))
