"""Every estimator on a laboratory batch, through the project's own pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lab.rollouts import Actor, LabBatch, Reference
from rredcot_plugin.adapter.probe_plan import answer_starts, plan_probes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import Probed, proposal_limits
from rredcot_plugin.values.calibration import OutcomeCalibrator

FOREIGN = {"bridge": "\n\n**Final Answer**\n\\boxed{", "terminator": "}"}
"""A bridge that no laboratory model has ever seen."""

GROUP_MEAN = "group_mean"
ESTIMATORS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "default_one_batch": {},
    "trees": {"calibrate": "trees"},
    "support": {"calibrate": "none"},
    "self_normalized": {"value_estimator": "self_normalized", "calibrate": "none"},
    "self_normalized+outcome": {"value_estimator": "self_normalized"},
    "own_ratio": {"value_estimator": "own_ratio", "calibrate": "none"},
    "ground_truth": {"value_estimator": "ground_truth", "calibrate": "none"},
    "ground_truth+outcome": {"value_estimator": "ground_truth"},
    "foreign_bridge": {**FOREIGN, "calibrate": "none"},
    "foreign_bridge+outcome": FOREIGN,
    "confidence": {"value_estimator": "confidence", "calibrate": "none"},
    "confidence+outcome": {"value_estimator": "confidence"},
    "attention": {"value_estimator": "attention"},
    "gradient": {"value_estimator": "gradient"},
    "monte_carlo_4": {"value_estimator": "monte_carlo"},
    GROUP_MEAN: {},
}
"""Name -> options beside ``segmenter``. ``+outcome`` is ``calibrate: outcome`` with all past batches as its window, which
the default and ``trees`` have as well; ``default_one_batch`` is the default at the first step, without past batches."""

WINDOWED = tuple(name for name in ESTIMATORS if name in ("default", "trees") or name.endswith("+outcome"))


def config_of(name: str) -> RRedCoTConfig:
    return RRedCoTConfig.from_mapping({"segmenter": "newline", **ESTIMATORS[name]})


@dataclass
class Workbench:
    """One family's batches: past ones first, the last is judged. Probes are asked once per kind and bridge."""

    actor: Actor
    batches: list[LabBatch]
    segments: list[Segments]
    reference: Reference | None = None
    _probed: dict[Any, dict[str, Probed]] = field(default_factory=dict, repr=False)

    def values(self, name: str) -> np.ndarray:
        """V̂ (B, S) of the last batch.

        Raises:
            ValueError: a value that is not finite, with the estimator's name; nothing is averaged over it.
        """
        last, config = len(self.batches) - 1, config_of(name)
        if name == GROUP_MEAN:
            outcomes = self.batches[last].rows.rollouts.outcomes
            mean = torch.zeros_like(outcomes)
            ids = torch.tensor([int(g) for g in self.batches[last].rows.rollouts.group_ids])  # type: ignore[call-overload]
            for g in ids.unique():
                mean[ids == g] = outcomes[ids == g].mean()
            return mean[:, None].expand(self.segments[last].exists.shape).numpy()
        calibrator = dataclasses.replace(config, calibrate_window=last).build_calibrator()
        for index in range(0 if name in WINDOWED else last, last + 1):
            credit = self._credit(index, config, calibrator)
        values = credit.values.numpy()
        exists = self.segments[last].exists.numpy()
        if not np.isfinite(values[exists]).all():
            raise ValueError(
                f"{self.actor.family.name}/{name}: {np.sum(~np.isfinite(values[exists]))} values not finite"
            )
        return values

    def _credit(self, index: int, config: RRedCoTConfig, calibrator: OutcomeCalibrator) -> Any:
        batch, segments = self.batches[index], self.segments[index]
        rollouts = dataclasses.replace(batch.rows.rollouts, token_scores=self._token_scores(index, config))
        return assign_credit(
            rollouts, config, segments=segments, probed=self.probed(index, config), calibrator=calibrator
        )

    def probed(self, index: int, config: RRedCoTConfig) -> dict[str, Probed]:
        """Log-probs of what the configuration proposes, at every state of a batch."""
        kinds = tuple(sorted(proposal_limits(config.build_value_estimator()).items()))
        key = (index, kinds, config.bridge)
        if key not in self._probed:
            batch = self.batches[index]
            encoder = ProbeEncoder(self.actor.tokenizer, config.bridge, config.terminator, config.max_probe_tokens)
            plan = plan_probes(batch.rows, self.segments[index], config, encoder)
            found = self.actor.scorer.probes(batch.tokens, plan.specs)
            self._probed[key] = plan.probed(found, length_normalize=config.length_normalize)
        return self._probed[key]

    def _token_scores(self, index: int, config: RRedCoTConfig) -> dict[str, torch.Tensor]:
        """What ``attention``, ``gradient`` and ``monte_carlo`` read; nothing for the others."""
        name, batch, segments = str(config.value_estimator), self.batches[index], self.segments[index]
        table = torch.full(batch.rows.rollouts.token_ids.shape, torch.nan)
        if name == "monte_carlo" and self.reference is not None:
            for row, k in np.argwhere(np.isfinite(self.reference.few)):
                table[row, segments.starts[row, k]] = float(self.reference.few[row, k])
        elif name in ("attention", "gradient"):
            for row, start in enumerate(answer_starts(batch.rows, segments)):
                if start >= 0:
                    found = self.actor.scorer.attribution(name, batch.tokens[row], start)
                    table[row, : batch.rows.lengths[row]] = found[len(batch.rows.prompts[row]) :]
        else:
            return {}
        return {name: table}
