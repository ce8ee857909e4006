"""Every estimator on every enumerable policy: how far its expected gradient is from the gradient, and how noisy it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from lab.store import Store
from record import Summary

from estimators_table import ours
from estimators_table.batch import VERL, Batch
from estimators_table.exact import AGGREGATIONS, Found, batch_of, joined, of_policy
from estimators_table.policies import SHAPES, Policy, tree_policy

SUM, TOKEN_MEAN, TRACE_MEAN = AGGREGATIONS


@dataclass(frozen=True)
class Plan:
    """``seeds`` policies of every shape and kind of reward; groups of ``sizes``; ``batches`` are sampled."""

    seeds: int = 2
    sizes: tuple[int, ...] = (2, 4, 8)
    batches: int = 600
    shapes: tuple[str, ...] = tuple(SHAPES)


@dataclass(frozen=True)
class Prompt:
    shape: str
    graded: bool
    seed: int

    def policy(self) -> Policy:
        return tree_policy(self.shape, self.seed, graded=self.graded)


Moments = dict[tuple[str, str, int], list[Found]]
"""(estimator, aggregation, N) → one for each prompt."""


def prompts_of(plan: Plan) -> list[Prompt]:
    return [Prompt(*key) for key in itertools.product(plan.shapes, (False, True), range(plan.seeds))]


def enumerate_all(plan: Plan, store: Store, progress: Callable[[str], None]) -> Moments:
    """From the store where it has a prompt's moments."""
    found: Moments = {}
    options = repr({name: given for name, (given, _) in ours.VARIANTS.items()})
    for prompt in prompts_of(plan):
        policy = prompt.policy()
        for size in plan.sizes:
            stored = store.json(
                f"exact_{prompt.shape}_{size}",
                [asdict(prompt), policy.log_probs.tolist(), policy.rewards.tolist(), size, options],
                lambda prompt=prompt, policy=policy, size=size: _enumerate(prompt, policy, size),  # type: ignore[misc]
            )
            for name, aggregation, mean, trace in stored:
                one = Found(torch.tensor(mean, dtype=torch.float64), trace, policy.gradient)
                found.setdefault((name, aggregation, size), []).append(one)
            progress(f"{prompt.shape}, {'graded' if prompt.graded else '0/1'} {prompt.seed}: N={size}")
    return found


def _enumerate(prompt: Prompt, policy: Policy, size: int) -> list[Any]:
    estimators = VERL | ours.estimators(prompt.shape, graded=prompt.graded)
    found = of_policy(estimators, policy, size)
    return [[*key, one.mean.tolist(), one.trace] for key, one in found.items()]


@dataclass(frozen=True)
class Sampled:
    """Angle of E ĝ and g in degrees, its standard error, and (E ĝ · g/‖g‖)² / tr Cov(ĝ)."""

    degrees: float
    error: float
    signal: float


def sample_batches(plan: Plan, store: Store, size: int) -> dict[str, Sampled]:
    """Estimators that take statistics of the batch, where it holds a group of every prompt; and ``grpo`` beside them."""
    names = ["grpo", *(name for name, own in VERL.items() if own.by_batch)]
    settings = [asdict(plan), size, names]
    made = store.json(f"sampled_{size}", settings, lambda: _sample(plan, size, names))
    return {name: Sampled(*own) for name, own in made.items()}


def _sample(plan: Plan, size: int, names: list[str], seed: int = 0) -> dict[str, list[float]]:
    policies = [prompt.policy() for prompt in prompts_of(plan)]
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, list[torch.Tensor]] = {name: [] for name in ["rloo", *names]}
    for _ in range(plan.batches):
        rows = [torch.multinomial(p.probabilities, size, replacement=True, generator=generator) for p in policies]
        batch = one_batch(policies, rows)
        for name, own in drawn.items():
            own.append(_gradient(policies, rows, VERL[name].call(batch)))
    exact = torch.cat([p.gradient for p in policies]) / len(policies)
    known = torch.stack(drawn["rloo"])
    return {name: list(vars(compared(torch.stack(drawn[name]), known, exact)).values()) for name in names}


def compared(drawn: torch.Tensor, known: torch.Tensor, exact: torch.Tensor) -> Sampled:
    """Of (batches, D) gradients, beside those of an estimator with expectation ``exact`` on the same batches.

    What the two share of the noise is taken off; the length of the mean is a product of different batches, so that
    noise adds nothing to it.
    """
    centred = known - exact
    slope = float((centred * drawn).sum() / centred.square().sum())
    calmed, unit = drawn - slope * centred, exact / exact.norm()
    along = float((calmed @ unit).mean())
    off = calmed - (calmed @ unit)[:, None] * unit
    total, number = off.sum(0), len(off)
    square = float(total @ total - off.square().sum()) / (number * (number - 1))
    error = float(off.var(0).sum() / number) ** 0.5
    return Sampled(
        float(np.degrees(np.arctan2(max(square, 0.0) ** 0.5, along))),
        float(np.degrees(error / abs(along))),
        along**2 / float(drawn.var(0).sum()),
    )


def one_batch(policies: list[Policy], rows: list[torch.Tensor]) -> Batch:
    """A group of each policy."""
    return Batch.joined(
        [batch_of(p, own, np.full(len(own), i)) for i, (p, own) in enumerate(zip(policies, rows, strict=True))]
    )


def _gradient(policies: list[Policy], rows: list[torch.Tensor], advantages: torch.Tensor) -> torch.Tensor:
    """Mean over the rollouts of Σ_t A_t ∇ log π, the prompts' parameters one after the other."""
    size = len(rows[0])
    parts = []
    for p, own, table in zip(policies, rows, advantages.double().split(size), strict=True):
        weighed = (table[:, : p.mask.shape[1]] * p.mask[own])[:, :, None] * p.scores[own]
        parts.append(weighed.sum((0, 1)) / size)
    return torch.cat(parts) / len(policies)


def summarise(found: Moments, sampled: Mapping[int, Mapping[str, Sampled]], sizes: Sequence[int]) -> Summary:
    """``measure/estimator/N`` → number and range, see benchmarks/estimators.py."""
    summary: Summary = {}
    names = list(dict.fromkeys(name for name, _, _ in found))
    for name, size in itertools.product(names, sizes):
        each, grpo = found[name, SUM, size], found["grpo", SUM, size]
        snr = [own.signal / other.signal for own, other in zip(each, grpo, strict=True)]
        numbers = {
            "size": [own.size for own in each],
            "degrees": [own.degrees for own in each],
            "snr_vs_grpo": snr,
        }
        for key, aggregation in (("token_mean", TOKEN_MEAN), ("trace_mean", TRACE_MEAN)):
            numbers[f"{key}_degrees"] = [own.degrees for own in found[name, aggregation, size]]
        summary |= {f"{measure}/{name}/{size}": spread(own) for measure, own in numbers.items()}
        if name in sampled[size] and name != "grpo":
            one = sampled[size][name]
            degrees, error, ratio = one.degrees, 2 * one.error, one.signal / sampled[size]["grpo"].signal
        else:
            degrees, error, ratio = joined(each).degrees, 0.0, joined(each).signal / joined(grpo).signal
        summary[f"batch_degrees/{name}/{size}"] = {
            "value": degrees, "low": max(0.0, degrees - error), "high": degrees + error
        }  # fmt: skip
        summary[f"batch_snr_vs_grpo/{name}/{size}"] = spread([ratio])
    return summary


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"value": float(np.median(numbers)), "low": float(min(numbers)), "high": float(max(numbers))}
