"""What the fidelity benchmark says on the terminal: a table of every family, and the default where it is worst."""

from __future__ import annotations

import math
from collections.abc import Sequence

from record import Summary

from lab.lm.tasks import LM
from lab.tasks import FAMILIES

TARGETS = {"pearson_value": 0.92, "pearson_delta": 0.70}
LM_TARGETS = {"pearson_value": 0.85, "pearson_delta": 0.55}
"""Of the real language model's families."""
SHOWN = ("pearson_value", "spearman_value", "rmse_value", "pearson_delta", "spearman_delta", "blame")


def show(name: str, summary: Summary, estimators: Sequence[str]) -> None:
    """One family's table."""
    facts = {key: summary[f"{name}/{key}"]["value"] for key in ("ceiling_value", "ceiling_delta", "accuracy")}
    error, places = (summary[f"{name}/{key}"]["value"] for key in ("reference_standard_error", "boundaries"))
    print(
        f"\n{name} ({FAMILIES[name].kind}): {places:.0f} boundaries, accuracy {facts['accuracy']:.2f}, standard error "
        f"{error:.3f}, ceiling {facts['ceiling_value']:.3f} value, {facts['ceiling_delta']:.3f} delta"
    )
    print(f"{'':26s}" + "".join(f"{column:>22s}" for column in SHOWN))
    for estimator in estimators:
        cells = [summary[f"{name}/{estimator}/{column}"] for column in SHOWN]
        print(f"{estimator:26s}" + "".join(f"{c['value']:8.2f} [{c['low']:5.2f},{c['high']:5.2f}]" for c in cells))


def targets_of(families: Sequence[str]) -> dict[str, float]:
    return LM_TARGETS if all(FAMILIES[name].model == LM for name in families) else TARGETS


def worst(summary: Summary, families: list[str]) -> Summary:
    """The default's two headline numbers on the family where they are lowest.

    A family without a number (references that do not vary) is named, and there is no headline then.
    """
    found: Summary = {}
    for measure, target in targets_of(families).items():
        entries = {name: summary[f"{name}/default/{measure}"] for name in families}
        unknown = [name for name, entry in entries.items() if not math.isfinite(entry["value"])]
        if unknown:
            print(f"{measure} of the default: no number on {', '.join(unknown)}, so no worst family")
            continue
        at = min(families, key=lambda name: entries[name]["value"])
        verdict = "reached" if entries[at]["value"] >= target else "MISSED"
        print(
            f"{measure} of the default, worst family ({at}): {entries[at]['value']:.3f}, target {target}: {verdict}"
        )
        found[measure] = entries[at]
    return found


def without_unknown(summary: Summary) -> Summary:
    """JSON has no NaN: entries without a number are named and left out."""
    unknown = [name for name, entry in summary.items() if not all(map(math.isfinite, entry.values()))]
    if unknown:
        print(f"{len(unknown)} entries have no number (nothing varies there): {', '.join(unknown[:8])}, …")
    return {name: entry for name, entry in summary.items() if name not in unknown}
