"""A training step of the benchmark, and the calibrators as the steps before it left them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grads.asking import Asked, tokens_of
from grads.truth import Pool
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.groups import GroupStats, group_stats
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.presets import PRESETS
from rredcot_plugin.types import Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator

LOW_FLOOR: dict[str, Any] = dict(PRESETS["low_variance"].keys["baseline_kwargs"])
"""Options of a baseline that lets certain tokens weigh less, and other groups more."""

FITTED: dict[str, dict[str, Any]] = {
    "default": {},
    "value": {"baseline": "value"},
    "trees": {"calibrate": "trees", "baseline": "value"},
    "confidence": {"value_estimator": "confidence", "baseline": "value"},
    "low_floor": {"baseline": "least_variance", "baseline_kwargs": LOW_FLOOR},
}
"""What is fitted across groups, values or the default's baselines: name → options."""

LATER: dict[str, dict[str, Any]] = {
    f"credit_weight_{weight:g}": {"credit_weight": weight, "scale": "none"} for weight in (0.5, 1.0)
}
"""The default, unscaled, with less luck of later segments."""

LATER["credit_weight_auto"] = {"credit_weight": "auto", "scale": "none"}
LATER["low_floor_credit_weight_0.5"] = {**FITTED["low_floor"], **LATER["credit_weight_0.5"]}
LATER["low_variance"] = {"preset": "low_variance"}
LATER["low_variance_confidence"] = {**LATER["low_variance"], "value_estimator": "confidence"}


@dataclass(frozen=True)
class Step:
    """A training step: rows in the order of prompts × group, calibrators as the past left them, and the truth about it."""

    rows: PromptedRollouts
    segments: Segments
    window: dict[str, dict[str, Any]]
    """State of the calibrator of each of ``FITTED`` and ``LATER``, as the past steps left it."""
    pool: Pool
    prompt_mean: torch.Tensor
    """(B,) mean reward of the row's prompt in the reference sample."""
    past_sum: torch.Tensor
    past_count: torch.Tensor
    """(B,) Σ R and number of rollouts of the row's prompt in the last four steps."""

    @property
    def outcomes(self) -> torch.Tensor:
        return self.rows.rollouts.outcomes

    @property
    def stats(self) -> GroupStats:
        return group_stats(self.outcomes, self.rows.rollouts.group_ids, torch.isfinite(self.outcomes))


def config(**options: Any) -> RRedCoTConfig:
    return RRedCoTConfig.from_mapping({"segmenter": "newline", **options})


def fit_values(
    asked: Asked, rows: PromptedRollouts, segments: Segments, name: str, calibrator: OutcomeCalibrator
) -> Any:
    """Credit with the values of one of ``FITTED`` or ``LATER``; the calibrator's window gains the batch."""
    chosen = config(**(FITTED | LATER)[name])
    probed = asked.probed(rows, segments, chosen)
    return assign_credit(rows.rollouts, chosen, segments=segments, probed=probed, calibrator=calibrator)


def places(step: Step) -> list[tuple[int, ...]]:
    """The state of every segment, in the order of ``exists``."""
    tokens, prompts = tokens_of(step.rows), [len(p) for p in step.rows.prompts]
    starts = step.segments.starts.tolist()
    rows, states = step.segments.exists.nonzero().T.tolist()
    return [tuple(tokens[r][: prompts[r] + starts[r][k]]) for r, k in zip(rows, states, strict=True)]
