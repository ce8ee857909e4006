"""Which answers are put to the actor at the boundaries of each trace. Pure bookkeeping over texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import group_index
from rredcot_plugin.values.base import FROM_OTHERS, OWN, TRUTH

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxtyping import Bool, Float
    from torch import Tensor

FROM_GROUP, FROM_GROUND_TRUTH, NOTHING = 0, 1, 2


@dataclass(frozen=True)
class Proposals:
    """``answers[b]`` are the texts proposed to rollout b, at most N; ``utility`` and ``valid`` go with them.

    ``source`` (B,) says where they come from: the group, the data set (ground truth or references), or nowhere.
    ``solutions[b]`` stand before the answers where references are proposed, else None; ``log_q`` as in
    ``Probed``.
    """

    answers: list[list[str]]
    utility: Float[Tensor, "B N"]
    valid: Bool[Tensor, "B N"]
    source: list[int]
    solutions: list[list[str]] | None = None
    log_q: Float[Tensor, "B N"] | None = None


def build_proposals(
    answers: Sequence[str | None],
    outcomes: Float[Tensor, " B"],
    group_ids: Sequence[Hashable],
    ground_truths: Sequence[object] | None,
    *,
    proposes: str,
    allowed: str = "group_or_ground_truth",
    leave_one_out: bool = True,
    max_proposals: int = 8,
    ground_truth_utility: float = 1.0,
    floor: Float[Tensor, " B"] | None = None,
) -> Proposals:
    """Collect the distinct answers of each group (docs/reference/math.md, "leave-one-out").

    The utility of an answer is the mean reward of the rollouts that gave it. With ``leave_one_out`` a
    rollout's own reward does not count, so an answer that only it gave is not proposed to it. Answers
    given most often come first, and ``max_proposals`` cuts the rest. Answers worth no more than the lowest
    reward (0, or a negative one) tell ``support`` nothing and are left out. A rollout with nothing to propose
    gets the ground truth, if it is text or a number, with ``ground_truth_utility`` where ``allowed`` permits it, else nothing.
    Rollouts whose outcome is not finite propose nothing. What ``proposes`` may be stands with ``ValueEstimator``. ``floor`` is
    ``floor_of`` the whole batch where these rollouts are a part of one; None: they are all.
    """
    for name, given_rows in (("answers", answers), ("group_ids", group_ids)):
        if len(given_rows) != len(outcomes):
            raise ValueError(f"{name}: expected {len(outcomes)} entries, one per rollout, got {len(given_rows)}")
    worst = (floor_of(outcomes) if floor is None else floor).tolist()
    scores = outcomes.double().tolist()
    finite = torch.isfinite(outcomes).tolist()
    index = group_index(group_ids).tolist()
    given: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, answer in enumerate(answers):
        if answer is not None and finite[row]:
            given[index[row]][answer].append(row)

    def from_group(row: int) -> list[tuple[str, float]]:
        if proposes == OWN:
            own = answers[row]
            return [(own, scores[row])] if own is not None and finite[row] else []
        found = []
        for answer, rows in given[index[row]].items():
            others = [r for r in rows if r != row or not leave_one_out]
            utility = sum(scores[r] for r in others) / len(others) if others else 0.0
            if others and (utility > worst[row] or proposes == "group_all"):
                found.append((-len(others), answer, utility))
        return [(answer, utility) for _, answer, utility in sorted(found)[:max_proposals]]

    asks_group = proposes == OWN or (proposes in FROM_OTHERS and allowed != "ground_truth")
    takes_truth = proposes == TRUTH or (proposes in FROM_OTHERS and allowed != "group")
    chosen, source = [], []
    for row in range(len(answers)):
        picks = from_group(row) if asks_group else []
        truth = ground_truths[row] if ground_truths is not None else None
        is_answer = isinstance(truth, str | Number) and str(truth).strip()  # unit tests, say, are a mapping
        fallback = not picks and takes_truth and is_answer
        source.append(FROM_GROUP if picks else FROM_GROUND_TRUTH if fallback else NOTHING)
        chosen.append([(str(truth).strip(), ground_truth_utility)] if fallback else picks)
    return pack_proposals(chosen, source)


def floor_of(outcomes: Float[Tensor, " B"], lowest: float | None = None) -> Float[Tensor, " B"]:
    """What an answer that nobody proposed is taken to earn: 0, or the lowest reward if that is negative.

    That of past steps (``lowest``), on which no reward of this step has a say: values of other groups, and with them the
    fit, then do not know a rollout's own. Without a past, of the other rollouts of the batch.
    """
    known = lowest_of_others(outcomes) if lowest is None else torch.full_like(outcomes, lowest)
    return known.clamp(max=0.0)


def lowest_of_others(outcomes: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The lowest finite outcome among all other rollouts of the batch; 0 where there is none.

    >>> lowest_of_others(torch.tensor([1.0, -1.0, 0.5]))
    tensor([-1.0000,  0.5000, -1.0000])
    """
    known = torch.where(torch.isfinite(outcomes), outcomes, torch.inf)
    known = torch.nn.functional.pad(known, (0, 2), value=torch.inf)  # so that there always are two
    (low, second), (lowest, _) = known.topk(2, largest=False)
    result = torch.where(torch.arange(len(outcomes), device=known.device) == lowest, second, low)
    return torch.where(torch.isfinite(result), result, 0.0)


def pack_proposals(chosen: list[list[tuple[str, float]]], source: list[int]) -> Proposals:
    """``Proposals`` from (answer, utility) pairs of each rollout."""
    width = max([1, *map(len, chosen)])
    utility = torch.zeros(len(chosen), width)
    valid = torch.zeros(len(chosen), width, dtype=torch.bool)
    for row, picks in enumerate(chosen):
        for column, (_, value) in enumerate(picks):
            utility[row, column], valid[row, column] = value, True
    return Proposals([[answer for answer, _ in picks] for picks in chosen], utility, valid, source)
