"""Credit of later segments (``credit_weight``), as the package has it and with what one could take instead."""

from __future__ import annotations

from typing import Any

import torch

from grads.asking import Asked
from grads.methods import credit_of, per_segment
from grads.step import LATER, Step, config, fit_values
from rredcot_plugin.credit.later_segments import later_surprises
from rredcot_plugin.credit.redistribution import redistribute

UNCENTRED = ("value", "trees", "monte_carlo_4", "true")
"""Values whose δ is taken as it is, without what its own state predicts of it."""


def later_credit(step: Step, values: dict[str, torch.Tensor], asked: Asked, past: int) -> dict[str, torch.Tensor]:
    """(B, S) of every way: ``credit_weight_c`` is the package's, ``later_<values>_c`` R − b − c·Σ_{l>k} δ_l."""
    found: dict[str, torch.Tensor] = {}
    for name, options in LATER.items():
        calibrator = config(**options, calibrate_window=past).build_calibrator()
        window: dict[str, Any] = step.window[name]
        calibrator.load_state_dict(window)
        credit = fit_values(asked, step.rows, step.segments, name, calibrator)
        found[name] = per_segment(credit.advantages, step.segments)
    plain = credit_of(step, values["default"], scale="none")
    for name in [name for name in UNCENTRED if name in values]:
        changes = redistribute(values[name], step.outcomes, step.segments.num_segments)
        later = torch.where(step.segments.exists, later_surprises(changes), 0.0)
        for weight in (0.5, 1.0):
            found[f"later_{name}_{weight:g}"] = plain - weight * later
    return found
