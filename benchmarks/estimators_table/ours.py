"""The package's own credit on enumerable policies: every token a segment of its own, baselines fitted on past steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from estimators_table.batch import Batch, Estimator
from estimators_table.exact import batch_of
from estimators_table.leave_one_out import otb_leave_one_out
from estimators_table.policies import tree_policy
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import Rollouts

PAST_STEPS, PAST_PROMPTS, PAST_GROUP = 4, 16, 8
TOKEN_SEGMENTS: dict[str, Any] = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 1}}
EXACT = "a function of the prefix, of the group's other rollouts and of past steps"

VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "rredcot": (TOKEN_SEGMENTS, "divided by the group's standard deviation, as GRPO; else as below"),
    "rredcot_no_std": (TOKEN_SEGMENTS | {"scale": "none"}, EXACT),
    "rredcot_value": (TOKEN_SEGMENTS | {"scale": "none", "baseline": "value"}, EXACT),
    "rredcot_trace": (TOKEN_SEGMENTS | {"scale": "none", "baseline": "trace"}, "one number a trace, from the others"),
    "rredcot_none": ({"segmenter": "none"}, "one segment a trace is verl's grpo, by design"),
    "rredcot_none_no_std": (
        {"segmenter": "none", "scale": "none"},
        "one segment a trace is verl's grpo without deviation, by design",
    ),
}
"""Name → options on top of the defaults, and why the expectation is the gradient, or is not."""


def rollouts_of(batch: Batch) -> Rollouts:
    """The batch in the package's form, float32."""
    ids = torch.zeros(batch.mask.shape, dtype=torch.int64)
    log_probs = batch.log_probs.float()
    return Rollouts(
        ids, batch.mask.bool(), batch.rewards.float(), batch.index.tolist(), log_probs=log_probs
    )


def past_batch(shape: str, step: int, graded: bool) -> Batch:
    """A step on prompts that are measured nowhere, with ``PAST_GROUP`` sampled rollouts each."""
    generator = torch.Generator().manual_seed(step)
    parts = []
    for prompt in range(PAST_PROMPTS):
        policy = tree_policy(shape, 10_000 + step * PAST_PROMPTS + prompt, graded=graded)
        rows = torch.multinomial(policy.probabilities, PAST_GROUP, replacement=True, generator=generator)
        parts.append(batch_of(policy, rows, np.full(PAST_GROUP, prompt)))
    index = np.concatenate([part.index for part in parts])
    names = ("log_probs", "sum_pi_squared", "values", "greedy")
    joined = [torch.cat([getattr(part, name) for part in parts]) for name in ("rewards", "mask", *names)]
    return Batch(joined[0], joined[1], index, *joined[2:])


@dataclass(frozen=True)
class Past:
    """Calibrators that have seen ``PAST_STEPS`` steps, made anew for every group, so that groups stay independent."""

    shape: str
    graded: bool

    def call(self, options: dict[str, Any]) -> Callable[[Batch], torch.Tensor]:
        """Advantages of a batch, which is one group here."""
        config = RRedCoTConfig(**options)
        seen = config.build_calibrator()
        for step in range(PAST_STEPS):
            assign_credit(rollouts_of(past_batch(self.shape, step, self.graded)), config, calibrator=seen)

        def advantages(batch: Batch) -> torch.Tensor:
            calibrator = copy.deepcopy(seen)
            return assign_credit(rollouts_of(batch), config, calibrator=calibrator).advantages

        return advantages


def estimators(shape: str, *, graded: bool) -> dict[str, Estimator]:
    """Every variant, with a past of the shape's policies, and the token baseline that leaves the own reward out."""
    past = Past(shape, graded)
    found = {
        name: Estimator(past.call(options), why, by_batch=True) for name, (options, why) in VARIANTS.items()
    }
    why = "verl's formula over the other rollouts alone; not in verl"
    return {"otb_leave_one_out": Estimator(otb_leave_one_out, why)} | found
