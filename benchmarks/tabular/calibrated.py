"""The shipped default, ``calibrate: outcome``: fitted across the groups of a batch, so it has to be sampled.

A batch holds one group of every prompt; the calibrator keeps its window from batch to batch, as in training on a
policy that stands still. GRPO and leave-one-out run on the same batches, for ratios that are paired.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed
from tabular.credit import one_token_each, probe, rollouts_of
from tabular.moments import Moments
from tabular.prompts import Prompt
from tabular.value_functions import asked_too_early

VARIANTS = {
    "sampled_grpo": {"segmenter": "none"},
    "sampled_leave_one_out": {"scale": "none", "calibrate": "none"},
    "calibrated_lam_1": {"scale": "none"},
    "calibrated_lam_0.9": {"scale": "none", "lam": 0.9},
    "calibrated_lam_0": {"scale": "none", "lam": 0.0},
    "value_baseline": {},
    "default": {},
    "default_unscaled": {"scale": "none"},
}
"""Options on top of the defaults; ``default`` is as shipped: λ = 1, measured from baselines of least variance, divided
by the group's deviation. All others are measured from the fitted values."""

WARM_UP = 5
"""Batches before the first that counts: the calibrator's window is then full."""


def sampled_moments(
    prompts: list[Prompt], size: int, batches: int, seed: int, progress: Callable[[int], None]
) -> list[dict[str, Moments]]:
    """Moments of each variant for each prompt."""
    generator = torch.Generator().manual_seed(seed)
    calibrator = rr.RRedCoTConfig().build_calibrator()
    gradients: dict[str, list[torch.Tensor]] = {name: [] for name in VARIANTS}
    for batch in range(WARM_UP + batches):
        rows = [torch.multinomial(p.probabilities, size, replacement=True, generator=generator) for p in prompts]
        advantages = batch_advantages(prompts, rows, calibrator)
        if batch >= WARM_UP:
            for name, found in advantages.items():
                gradients[name].append(batch_gradients(prompts, rows, found))
        progress(batch)
    stacked = {name: torch.stack(found) for name, found in gradients.items()}
    return [{name: summed_up(found[:, i]) for name, found in stacked.items()} for i in range(len(prompts))]


def batch_advantages(
    prompts: list[Prompt], rows: list[torch.Tensor], calibrator: rr.OutcomeCalibrator
) -> dict[str, torch.Tensor]:
    """(P·G, T) of each variant; one fit serves those that share its values."""
    parts = [rollouts_of(p, r, [i] * len(r)) for i, (p, r) in enumerate(zip(prompts, rows, strict=True))]
    rollouts = rr.Rollouts(
        *(
            torch.cat([getattr(part, name) for part in parts])
            for name in ("token_ids", "response_mask", "rewards")
        ),
        [gid for part in parts for gid in part.group_ids],
        log_probs=torch.cat([part.log_probs for part in parts]),
    )
    segments, config = one_token_each(rollouts), rr.RRedCoTConfig()
    probes = [
        probe(p, r, part, config, asked_too_early(p)) for p, r, part in zip(prompts, rows, parts, strict=True)
    ]
    probed = joined(probes)
    fitted = rr.assign_credit(rollouts, config, segments=segments, probed=probed, calibrator=calibrator)
    found = {"default": fitted.advantages}
    for name, options in VARIANTS.items():
        changed = dataclasses.replace(config, **options)
        if name == "sampled_grpo":
            found[name] = rr.assign_credit(rollouts, changed, segments=one_token_each(rollouts, True)).advantages
        elif name == "sampled_leave_one_out":
            found[name] = rr.assign_credit(rollouts, changed, segments=segments).advantages
        elif name != "default":
            measured_from = fitted.baselines if name.startswith("default") else fitted.values
            given = rr.assign_credit(rollouts, changed, segments=segments, values=measured_from)
            found[name] = given.advantages
    return found


def joined(probes: list[Probed]) -> Probed:
    """Probes of a batch; a group without any proposal has one column that is not valid."""
    width = max(1, *(found.valid.shape[1] for found in probes))

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, width - x.shape[-1]))

    return Probed(
        torch.cat([padded(found.log_pi) for found in probes]),
        torch.cat([padded(found.utility) for found in probes]),
        torch.cat([padded(found.valid) for found in probes]),
        torch.cat([found.num_segments for found in probes]),
    )


def batch_gradients(prompts: list[Prompt], rows: list[torch.Tensor], advantages: torch.Tensor) -> torch.Tensor:
    """(P, S·W): the gradient of each group."""
    found = []
    for p, taken, own in zip(prompts, rows, advantages.double().split([len(r) for r in rows]), strict=True):
        weights = torch.zeros(p.tree.traces.shape, dtype=torch.float64).index_add_(0, taken, own / len(taken))
        found.append(p.tree.gradient(p.logits[None], weights[None])[0].flatten())
    return torch.stack(found)


def summed_up(gradients: torch.Tensor) -> Moments:
    """Of (batches, S·W)."""
    trace = float(gradients.var(dim=0).sum())
    return Moments(gradients.mean(dim=0), trace, (trace / len(gradients)) ** 0.5)
