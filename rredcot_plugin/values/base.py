"""What a value estimator gets and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Probed:
    """Proposals of each rollout and how probable the actor finds them at every state.

    ``log_pi[b, i, n]``: log-probability, summed over the tokens of answer n and its terminator, at the
    state before segment i; nats. ``utility`` is the reward of an answer; ``valid`` says which of the N
    columns a row uses. ``num_segments`` gives the states of each row.
    """

    log_pi: Float[Tensor, "B S N"]
    utility: Float[Tensor, "B N"]
    valid: Bool[Tensor, "B N"]
    num_segments: Int[Tensor, " B"]


@dataclass(frozen=True)
class Estimate:
    """Raw values of all states, and for which rows the estimator had anything to go by."""

    values: Float[Tensor, "B S"]
    known: Bool[Tensor, " B"]


OWN, TRUTH, NO_PROBES = "own", "ground_truth", "nothing"
FROM_OTHERS = ("group", "group_all")


class ValueEstimator(Protocol):
    """``proposes`` says whose answers are probed: ``group`` (its rewarded ones), ``group_all``, ``own``,
    ``ground_truth`` (the data set's), or ``nothing``: then ``probed`` is None and no probe runs."""

    proposes: str
    max_proposals: int

    def __call__(
        self,
        probed: Probed | None,
        *,
        clip: float | None = None,
        rollouts: Rollouts | None = None,
        segments: Segments | None = None,
    ) -> Estimate: ...
