"""What a run knows of its past steps, as plain tensors, numbers and texts for the checkpoint of any trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rredcot_plugin.text.encoding import ProbeEncoder

WITHOUT_PAST = "calibration and probes start without a past"
"""What it means to go on from a checkpoint that holds nothing of ours."""

STYLE = "answer_style"
"""Beside the keys of the calibrator's state: checkpoints of versions without it hold those alone."""


def state_of(calibrator: Any, encoder: ProbeEncoder) -> dict[str, Any]:
    """The fit of past steps, and how the step before answered: ``torch.load(weights_only=True)`` reads it."""
    return {**calibrator.state_dict(), STYLE: encoder.state_dict()}


def take_up(state: Mapping[str, Any], calibrator: Any, encoder: ProbeEncoder) -> None:
    """Go on as the run whose ``state_of`` this is would have gone on."""
    calibrator.load_state_dict(state)
    if STYLE in state:
        encoder.load_state_dict(state[STYLE])
