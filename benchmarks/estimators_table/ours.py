"""The package's own credit on enumerable policies: every token a segment of its own, or none, with baselines fitted on
past steps."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from estimators_table.batch import Batch, Call, Estimator
from estimators_table.exact import batch_of
from estimators_table.leave_one_out import otb_leave_one_out
from estimators_table.policies import tree_policy
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import Rollouts

PAST_STEPS, PAST_PROMPTS, PAST_GROUP = 4, 8, 8
TOKENS: dict[str, Any] = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 1}}
WHOLE: dict[str, Any] = {"segmenter": "none", "calibrate": "none"}
FITTED = "a function of the prefix and of other rollouts"
OTHERS = "the others' mean, weighted by the gradient's length"
DIVIDED_TOO = "divided by the group's standard deviation"

VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "rredcot_value": (TOKENS | {"scale": "none", "baseline": "value"}, FITTED),
    "rredcot_no_std": (TOKENS | {"scale": "none"}, FITTED),
    "rredcot": (TOKENS | {"scale": "group_std"}, DIVIDED_TOO),
    "rredcot_trace": (
        TOKENS | {"scale": "none", "baseline": "trace", "calibrate": "none"},
        f"{OTHERS} of a trace",
    ),
    "rredcot_token": (WHOLE | {"scale": "none", "baseline": "token"}, f"{OTHERS} up to the token"),
    "rredcot_token_std": (WHOLE | {"scale": "group_std", "baseline": "token"}, DIVIDED_TOO),
    "rredcot_none": (WHOLE | {"scale": "none"}, "verl's grpo_no_std, by design"),
}
"""Name → options on top of the defaults, and why the expectation is the gradient, or is not."""


def rollouts_of(batch: Batch) -> Rollouts:
    """The batch in the package's form, float32."""
    log_probs = batch.log_probs.float()
    squares = batch.sum_pi_squared.float().clamp(max=1)
    return Rollouts(
        batch.tokens,
        batch.mask.bool(),
        batch.rewards.float(),
        batch.index.tolist(),
        log_probs=log_probs,
        sum_pi_squared=squares,
    )


def past_batch(shape: str, step: int, graded: bool) -> Batch:
    """A step on prompts that are measured nowhere, with ``PAST_GROUP`` sampled rollouts each."""
    generator = torch.Generator().manual_seed(step)
    parts = []
    for prompt in range(PAST_PROMPTS):
        policy = tree_policy(shape, 10_000 + step * PAST_PROMPTS + prompt, graded=graded)
        rows = torch.multinomial(policy.probabilities, PAST_GROUP, replacement=True, generator=generator)
        parts.append(batch_of(policy, rows, np.full(PAST_GROUP, prompt)))
    return Batch.joined(parts)


def with_past(options: dict[str, Any], shape: str, *, graded: bool) -> Call:
    """Advantages of a group by a calibrator that has seen ``PAST_STEPS`` steps, beside one group of another prompt.

    That group is always the same and every group gets a calibrator of its own, so that the groups stay independent.
    """
    config = RRedCoTConfig(**options)
    seen = config.build_calibrator()
    for step in range(PAST_STEPS):
        assign_credit(rollouts_of(past_batch(shape, step, graded)), config, calibrator=seen)
    more = past_batch(shape, PAST_STEPS, graded)
    longest = int(more.mask.sum(1).unflatten(0, (-1, PAST_GROUP)).sum(1).argmax())
    # of short traces alone there would be no states to fit
    beside = more.take(slice(longest * PAST_GROUP, (longest + 1) * PAST_GROUP))

    def advantages(batch: Batch) -> torch.Tensor:
        number = len(batch.index)
        both = Batch.joined([batch, replace(beside, index=np.full(PAST_GROUP, -1))])
        return assign_credit(rollouts_of(both), config, calibrator=copy.deepcopy(seen)).advantages[:number]

    return advantages


def alone(options: dict[str, Any]) -> Call:
    """Advantages of what reads a group alone."""
    config = RRedCoTConfig(**options)
    return lambda batch: assign_credit(rollouts_of(batch), config).advantages


def estimators(shape: str, *, graded: bool) -> dict[str, Estimator]:
    """Every variant, with a past of the shape's policies, and the token baseline that leaves the own reward out."""
    found = {"otb_leave_one_out": Estimator(otb_leave_one_out, "verl's formula over the other rollouts alone")}
    for name, (options, reason) in VARIANTS.items():
        together = options["segmenter"] != "none"
        call = with_past(options, shape, graded=graded) if together else alone(options)
        found[name] = Estimator(call, reason, by_batch=together)
    return found
