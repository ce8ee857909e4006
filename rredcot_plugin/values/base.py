"""What a value estimator gets and what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from rredcot_plugin.checks import check_flags, check_names, check_shape
from rredcot_plugin.registry import check_count, nearest
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Probed:
    """Proposals of each rollout and how probable the actor finds them at every state.

    ``log_pi[b, i, n]``: log-probability, summed over the tokens of answer n and its terminator, at the
    state before segment i; nats. ``utility`` is the reward of an answer; ``valid`` says which of the N
    columns a row uses. ``num_segments`` gives the states of each row; ``log_q`` the log-probability with
    which the data set's author wrote a reference, in nats, 0 where unknown. ``lowest`` is the lowest reward of past steps,
    None where there are none.
    """

    log_pi: Float[Tensor, "B S N"]
    utility: Float[Tensor, "B N"]
    valid: Bool[Tensor, "B N"]
    num_segments: Int[Tensor, " B"]
    log_q: Float[Tensor, "B N"] | None = None
    lowest: float | None = None


@dataclass(frozen=True)
class Estimate:
    """Raw values of all states, and for which rows the estimator had anything to go by.

    The value of the prompt (state 0) may be NaN where it was not measured; the prior then stands in, as it does at states of
    known rows that are not ``known_at``. Of these the earlier ones may not depend on what a row says later; None for all.
    """

    values: Float[Tensor, "B S"]
    known: Bool[Tensor, " B"]
    known_at: Bool[Tensor, "B S"] | None = None

    def at_states(self) -> Bool[Tensor, "B S"]:
        """The states that the estimator had anything to go by."""
        rows = self.known[:, None].expand_as(self.values)
        return rows if self.known_at is None else rows & self.known_at


OWN, TRUTH, REFERENCE, NO_PROBES = "own", "ground_truth", "reference", "nothing"
FROM_OTHERS = ("group", "group_all")
PROPOSES = (*FROM_OTHERS, OWN, TRUTH, REFERENCE, NO_PROBES)
"""What ``proposes`` may be."""


class ValueEstimator(Protocol):
    """An estimator that reads one kind of evidence.

    ``proposes`` says whose answers are probed: ``group`` (its rewarded ones), ``group_all``, ``own``,
    ``ground_truth`` (the data set's), ``reference`` (its solutions), or ``nothing``: then no probe runs and
    ``probed`` is None. Optional class attributes:

    ``reads``: names in ``Rollouts.token_scores`` that it needs; without them its rows are unknown.
    ``calibrates`` (default true): whether ``calibrate`` applies; false for values that are in reward units
    already.
    ``sees_outcome`` (default false): whether values depend on the trace's own outcome or later tokens, so that
    λ=1 is not unbiased.
    ``reads_texts`` (default false): whether it looks at ``Rollouts.texts``; estimators of your own always get them.
    """

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


@runtime_checkable
class CompositeEstimator(Protocol):
    """An estimator made of others: each part is asked on its own evidence, ``combine`` joins the answers."""

    parts: Sequence[Any]

    def combine(self, estimates: Sequence[Estimate], rollouts: Rollouts, segments: Segments) -> Estimate: ...


def with_parts(estimator: Any) -> Iterator[Any]:
    """An estimator and, if it is made of others, all of those."""
    yield estimator
    if isinstance(estimator, CompositeEstimator):
        for part in estimator.parts:
            yield from with_parts(part)


def leaves(estimator: Any) -> Iterator[Any]:
    """The estimators without parts that an estimator is made of."""
    return (part for part in with_parts(estimator) if not isinstance(part, CompositeEstimator))


def check_protocol(estimator: Any) -> None:
    """Check what an estimator says of itself: with a misspelt ``proposes`` no row would ever be known.

    Raises:
        ValueError: ``proposes`` of a leaf is missing or unknown, ``max_proposals`` no positive integer, ``reads`` a text.
    """
    for leaf in leaves(estimator):
        proposes, name = getattr(leaf, "proposes", None), type(leaf).__name__
        if proposes not in PROPOSES:
            hint = "" if proposes is None else nearest(str(proposes), list(PROPOSES))
            raise ValueError(f"{name}.proposes={proposes!r}:{hint} Allowed: {', '.join(PROPOSES)}")
        if proposes != NO_PROBES:
            most: Any = getattr(leaf, "max_proposals", None)
            check_count(f"{name}.max_proposals", most)
        check_names(leaf, "reads")


def proposal_limits(estimator: Any) -> dict[str, int]:
    """What must be probed: ``proposes`` of each leaf, with the largest ``max_proposals`` asked for."""
    limits: dict[str, int] = {}
    for leaf in leaves(estimator):
        if leaf.proposes != NO_PROBES:
            limits[leaf.proposes] = max(limits.get(leaf.proposes, 1), leaf.max_proposals)
    return limits


def scores_read(estimator: Any) -> set[str]:
    """Names in ``Rollouts.token_scores`` that the leaves need."""
    return {name for leaf in leaves(estimator) for name in getattr(leaf, "reads", ())}


def sees_outcome(estimator: Any) -> bool:
    """Whether an estimator, or a part of it, looks at the trace's own outcome."""
    return any(getattr(part, "sees_outcome", False) for part in with_parts(estimator))


def calibrates(estimator: Any) -> bool:
    """Whether calibration applies: yes as soon as one leaf is not in reward units."""
    return any(getattr(leaf, "calibrates", True) for leaf in leaves(estimator))


def estimate(
    estimator: Any,
    probed: Mapping[str, Probed],
    *,
    clip: float | None,
    rollouts: Rollouts,
    segments: Segments,
) -> Estimate:
    """Values of an estimator, asking the parts of a composite one by one.

    Raises:
        ValueError: what is no ``Estimate``, or does not fit the segments, naming the estimator.
    """
    if isinstance(estimator, CompositeEstimator):
        parts = [
            estimate(part, probed, clip=clip, rollouts=rollouts, segments=segments) for part in estimator.parts
        ]
        found = estimator.combine(parts, rollouts, segments)
    elif estimator.proposes != NO_PROBES and estimator.proposes not in probed:
        found = nothing_known(segments)
    else:
        found = estimator(probed.get(estimator.proposes), clip=clip, rollouts=rollouts, segments=segments)
    name = type(estimator).__name__
    if not isinstance(found, Estimate):
        raise ValueError(f"{name}: expected Estimate(values, known), got {type(found).__name__}")
    check_shape(f"values of {name}", found.values, segments.exists.shape)
    check_shape(f"known rows of {name}", found.known, segments.num_segments.shape)
    check_flags(f"known rows of {name}", found.known)
    if found.known_at is not None:
        check_shape(f"known states of {name}", found.known_at, segments.exists.shape)
        check_flags(f"known states of {name}", found.known_at)
    return found


def nothing_known(segments: Segments) -> Estimate:
    """An estimate without any known row."""
    return Estimate(torch.zeros(segments.exists.shape), torch.zeros(len(segments.num_segments), dtype=torch.bool))


def latest_number(numbers: Float[Tensor, "B N"], there: Bool[Tensor, "B N"]) -> tuple[Tensor, Tensor]:
    """The last number up to each column of those that are ``there``, 0 before the first; and whether there is one. What comes
    later has no say."""
    columns = torch.arange(numbers.shape[1], device=numbers.device)
    latest = torch.where(there, columns, -1).cummax(dim=1).values
    found = latest >= 0
    return torch.where(found, numbers.gather(1, latest.clamp(min=0)), 0.0), found


def scores_at_states(name: str, rollouts: Rollouts, segments: Segments) -> Estimate:
    """``token_scores[name]`` at the first token of each segment: the number about the state before it.

    A state whose number is not finite has that of the state before it, whatever comes later; without an earlier one it is
    not known, nor is a row without any.
    """
    scores = (rollouts.token_scores or {}).get(name)
    if scores is None:
        return nothing_known(segments)
    at = segments.at_starts(scores.float())
    finite = torch.isfinite(at) & segments.exists
    values, found = latest_number(at, finite)
    return Estimate(torch.where(segments.exists, values, 0.0), finite.any(dim=1), found & segments.exists)
