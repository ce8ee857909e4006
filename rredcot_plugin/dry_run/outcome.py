"""What two steps on the CPU came to, whichever trainer made them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.findings import Finding

RETURN_ERROR = "rredcot/credit/return_error/max"


@dataclass(frozen=True)
class Outcome:
    """Metrics of each step, as the trainer logged them."""

    steps: Mapping[int, Mapping[str, float]]
    replaced: tuple[str, ...]
    """What of the recipe had another value on the CPU."""

    def findings(
        self, trainer: str, reward: str, replaced: str, *, ours: bool, verbose: bool
    ) -> Iterator[Finding]:
        """Lines of the report. ``reward`` is the metric of the mean reward, ``replaced`` says how much had another value.

        Raises:
            RecipeError: a run that is ours has no metrics of ours.
        """
        steps = {step: metrics for step, metrics in self.steps.items() if step > 0}
        last = steps[max(steps)]
        mean = f"mean reward {last[reward]:.2f} of a tiny model that has seen these solutions"
        yield Finding("training", f"{len(steps)} steps of stock {trainer} on the CPU; {mean}")
        if ours:
            yield Finding("credit", credit_line(last))
        named = ": " + ", ".join(self.replaced) if verbose else " (--verbose names them)"
        text = f"{replaced} had another value on the CPU"
        yield Finding("training", text + (named if self.replaced else ""), "note")


def credit_line(metrics: Mapping[str, float]) -> str:
    if RETURN_ERROR not in metrics:
        raise RecipeError(f"training: no {RETURN_ERROR} among the metrics; is the plugin loaded? (rredcot doctor)")
    segments = metrics["rredcot/segments/per_trace/mean"]
    probes = metrics.get("rredcot/probes/per_trace/mean", 0.0)
    return (
        f"{segments:.1f} segments and {probes:.1f} probes per trace, credit sums to the reward within "
        f"{metrics[RETURN_ERROR]:.0g}"
    )


def algorithm_line(name: str, settings: Any) -> str:
    """An estimator with rredcot's options; None where it is another's."""
    if settings is None:
        return name
    return f"{name}: segmenter {settings.segmenter}, values {settings.value_estimator}, lam {settings.lam:g}"


def check_metrics(found: Mapping[int, Mapping[str, Any]], steps: int, log: Path) -> None:
    """Raise ``RecipeError`` for fewer than ``steps`` steps, or for a metric that is not finite."""
    if len([step for step in found if step > 0]) < steps:
        raise RecipeError(f"training: expected metrics of {steps} steps, got {sorted(found)} (log: {log})")
    for step, metrics in found.items():
        bad = [name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
        if bad:
            raise RecipeError(f"training: {bad[0]} is {metrics[bad[0]]} at step {step} (log: {log})")
