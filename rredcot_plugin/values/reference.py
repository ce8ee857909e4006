"""``reference``: how probable is a solution of the data set, from here on? (the paper's bank, by one reading)"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rredcot_plugin.registry import check_count, check_number, register_value_estimator
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import REFERENCE, Estimate, Probed, leaves
from rredcot_plugin.values.proposals import FROM_GROUND_TRUTH, NOTHING, Proposals, pack_proposals

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

LARGEST_LOG_WEIGHT = 60.0
"""π/q beyond e^60 says that q is wrong, and would overflow float32."""

FIELDS = {"solution", "answer", "utility", "log_q"}


@register_value_estimator("reference")
@dataclass(frozen=True)
class ReferenceEstimator:
    """How probable is a solution of the data set, answer included, from here on?

    V̂_i = (1/N) Σ_{(u,y)} π(u | s_i)·π(y | s_i, u)·U(y) / q(u, y) over the N references of the problem.
    The probe is the whole solution u with its answer y, so it needs ``max_probe_tokens`` to match, and the
    probability of a long text is tiny: ``length_normalize`` (the geometric mean per token) or ``calibrate`` puts it
    on a scale. ``clip`` bounds the weight π/q. References come from column ``column`` of the data set, or
    from that key of ``extra_info``: see ``build_references`` for what it may hold.
    Source: RREDCoT (arXiv 2606.06475), the bank of (question, solution, answer) in one note;
    docs/reference/math.md, "reference".
    """

    column: str = "references"
    max_proposals: int = 8

    proposes: ClassVar[str] = REFERENCE

    def __post_init__(self) -> None:
        check_count("max_proposals", self.max_proposals)

    def __call__(self, probed: Probed, *, segments: Segments, clip: float | None = None, **_: Any) -> Estimate:
        values = reference_values(probed, clip=clip)
        return Estimate(torch.where(segments.exists, values, 0.0), probed.valid.any(dim=1))


def reference_column(estimator: Any) -> str:
    """The column that an estimator, or a part of it, reads references from."""
    return next((leaf.column for leaf in leaves(estimator) if hasattr(leaf, "column")), ReferenceEstimator.column)


def reference_values(probed: Probed, *, clip: float | None = None) -> Float[Tensor, "B S"]:
    """The formula of ``ReferenceEstimator`` for log-probs of whole references; 0 for a row without one."""
    log_q = torch.zeros_like(probed.utility) if probed.log_q is None else probed.log_q
    weight = (probed.log_pi - log_q[:, None, :]).clamp(max=LARGEST_LOG_WEIGHT).exp()
    if clip is not None:
        weight = weight.clamp(max=clip)
    worth = torch.where(probed.valid, probed.utility, 0.0)[:, None, :] * torch.where(
        probed.valid[:, None, :], weight, 0.0
    )
    return worth.sum(dim=2) / probed.valid.sum(dim=1, keepdim=True).clamp(min=1)


def build_references(references: Sequence[Any] | None, num_rollouts: int, max_proposals: int) -> Proposals:
    """Proposals from the data set's solutions.

    An entry per rollout: None, a text, a mapping ``{solution, answer, utility, log_q}`` (only ``solution`` is needed;
    utility 1, log q 0) or a list of these. Without ``answer`` the solution is taken to say it.

    Raises:
        ValueError: an entry that is none of these, naming the rollout and what was found.
    """
    rows = [_entries(row, given)[:max_proposals] for row, given in enumerate(references or [None] * num_rollouts)]
    width = max([1, *map(len, rows)])
    utility, log_q = torch.zeros(num_rollouts, width), torch.zeros(num_rollouts, width)
    valid = torch.zeros(num_rollouts, width, dtype=torch.bool)
    for row, entries in enumerate(rows):
        for column, entry in enumerate(entries):
            utility[row, column], log_q[row, column] = _number(entry, "utility", 1.0), _number(entry, "log_q", 0.0)
            valid[row, column] = True
    return Proposals(
        answers=[[_text(entry.get("answer")) for entry in entries] for entries in rows],
        utility=utility,
        valid=valid,
        source=[FROM_GROUND_TRUTH if entries else NOTHING for entries in rows],
        solutions=[[str(entry["solution"]).strip() for entry in entries] for entries in rows],
        log_q=log_q,
    )


def _entries(row: int, given: Any) -> list[Mapping[str, Any]]:
    """The references of one rollout as mappings."""
    if _is_missing(given):
        return []
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        given = [given]
    found = [{"solution": entry} if isinstance(entry, str) else entry for entry in given]
    for entry in found:
        if not isinstance(entry, Mapping) or "solution" not in entry or set(entry) - FIELDS:
            raise ValueError(
                f"references of rollout {row}: expected texts or mappings with 'solution' (and "
                f"'answer', 'utility', 'log_q'), got {entry!r:.200}"
            )
    return [entry for entry in found if str(entry["solution"] or "").strip()]


def _text(answer: Any) -> str:
    """Of an answer, which may be the number 0; nothing where there is none."""
    return "" if _is_missing(answer) else str(answer).strip()


def _is_missing(x: Any) -> bool:
    """None, or the NaN that pandas makes of it."""
    return x is None or (isinstance(x, float) and math.isnan(x))


def _number(entry: Mapping[str, Any], key: str, default: float) -> float:
    """A number of an entry; files fill what a struct lacks with None."""
    value = entry.get(key)
    check_number(f"{key} of a reference", default if value is None else value, -sys.float_info.max)
    return default if value is None else float(value)


def reference_answers(references: Proposals, extract: Callable[[str], str | None]) -> Proposals:
    """The distinct answers of the references as proposals of their own, with the mean utility of those who say it.

    ``extract`` finds the answer in a solution that comes without one.
    """
    rows: list[dict[str, list[float]]] = []
    for row, solutions in enumerate(references.solutions or []):
        said: dict[str, list[float]] = {}
        for column, solution in enumerate(solutions):
            answer = references.answers[row][column] or extract(solution)
            if answer:
                said.setdefault(answer, []).append(float(references.utility[row, column]))
        rows.append(said)
    picks = [[(answer, sum(worth) / len(worth)) for answer, worth in said.items()] for said in rows]
    return pack_proposals(picks, [FROM_GROUND_TRUTH if pick else NOTHING for pick in picks])
