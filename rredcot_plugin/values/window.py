"""Which past rollouts a fit still sees: by the version of the policy that produced them, not by when they arrived.

In asynchronous training a batch holds rollouts of several versions, and several batches come between two versions. A
rollout's age is the number of versions between its own and the newest one that is known; where a host tells no versions, the
number of batches that have come since. In synchronous training both are the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.values.labelled_states import LabelledStates

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

LEAST_STEPS, LEAST_ROLLOUTS = 4, 512
"""Of the past, where the window is not told: fits of a hundred rollouts are rough, and cost learning (docs/evidence/learning.md)."""


def ages(steps: Sequence[LabelledStates]) -> list[Float[Tensor, " M"]]:
    """The age of every state of these batches, which stand in the order of their arrival."""
    told = [step.version[step.version.isfinite()] for step in steps]
    newest = max((float(own.max()) for own in told if len(own)), default=0.0)
    later = reversed(range(len(steps)))
    return [
        torch.where(step.version.isfinite(), newest - step.version, float(since))
        for step, since in zip(steps, later, strict=True)
    ]


def mean_age(steps: Sequence[LabelledStates]) -> float:
    """Of the rollouts of these batches; 0 if there are none."""
    weights = [step.weight.double() for step in steps]
    total = sum(float(own.sum()) for own in weights)
    product = sum(float((own * age).sum()) for own, age in zip(weights, ages(steps), strict=True))
    return product / total if total > 0 else 0.0


def within(steps: Sequence[LabelledStates], window: int | None, most: int) -> list[LabelledStates]:
    """What a window of ``window`` versions holds of these batches: all rollouts of a smaller age.

    None: at least those of ``LEAST_STEPS`` versions, and of as many as have ``LEAST_ROLLOUTS`` rollouts together. Batches of
    one version share the room of a step, about ``most`` states; the last to come have it. This also bounds what is kept of
    a host whose versions never change.
    """
    found = ages(steps)
    limit = _least_age(steps, found) if window is None else float(window)
    taken: Counter[float] = Counter()
    kept: list[LabelledStates] = []
    for step, age in zip(reversed(steps), reversed(found), strict=True):
        stays = age < limit
        for number in age[stays].unique().tolist():
            if taken[number] >= most:
                stays &= age != number
            else:
                taken[number] += int((age == number).sum())
        kept.append(step if bool(stays.all()) else step.some(stays))
    while kept and not len(kept[-1].weight):
        kept.pop()
    return kept[::-1]


def _least_age(steps: Sequence[LabelledStates], found: Sequence[Float[Tensor, " M"]]) -> float:
    """From this age on rollouts are spare; the weights of a rollout's states add up to 1."""
    rollouts: dict[float, float] = defaultdict(float)
    for step, age in zip(steps, found, strict=True):
        for number in age.unique().tolist():
            rollouts[number] += float(step.weight[age == number].sum())
    total = 0.0
    for number in sorted(rollouts):
        total += rollouts[number]
        if total >= LEAST_ROLLOUTS - 0.5:
            return max(LEAST_STEPS, number + 1)
    return math.inf
