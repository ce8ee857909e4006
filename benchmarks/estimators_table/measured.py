"""Size, direction and noise of every method's gradient on a family, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gradient import interval
from grads.moments import Moments, draws, moments
from lab.store import Store
from record import Summary

from estimators_table.families import gradients
from estimators_table.stage import Ready

BASELINE = "grpo"
MEASURES = ("size", "cosine", "snr_vs_grpo")


def measure_family(ready: Ready, store: Store, progress: Callable[[int], None]) -> Summary:
    """``measure/method`` → number and interval; all methods on the same groups, all draws paired with those of GRPO.

    ``size`` is E g · ∇ / ‖∇‖² − 1; products are taken between independent samples (grads/moments.py).
    """
    sizes = ready.sizes
    drawn = list(draws(sizes.steps, sizes.prompts, sizes.resamples, sizes.seed))
    found = {name: moments(own, ready.reference, drawn) for name, own in gradients(ready, store, progress).items()}
    summary: Summary = {}
    for name, own in found.items():
        for measure, numbers in columns(own, found[BASELINE]).items():
            summary[f"{measure}/{name}"] = interval(np.array(numbers))
    return summary


def columns(own: list[Moments], baseline: list[Moments]) -> dict[str, list[float]]:
    return {
        "size": [m.along / m.reference - 1 if m.reference > 0 else float("nan") for m in own],
        "cosine": [m.cosine for m in own],
        "snr_vs_grpo": [m.snr / other.snr for m, other in zip(own, baseline, strict=True)],
    }
