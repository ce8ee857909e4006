"""``calibrate``: turn raw values into probabilities of the outcome, with labels that are free.

How probable the right answer is *now* lies far below the value of continuing to think, until the last
segments. Outcomes are free labels: a small logistic regression of R on features of the prefix, fitted on
other groups of the batch and on the last steps, gives calibrated values that stay independent of the
trace's own outcome (``outcome``). ``group_shift`` fits one number instead, what must be added to the logit of
every raw value. Source: method.md, section 2.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

EXACT_GROUPS = 16
FOLDS = 8

LEAST_STEPS, LEAST_ROLLOUTS = 4, 512
"""Of the past, where the window is not told: fits of a hundred rollouts are rough, and cost learning (docs/evidence/learning.md)."""

MAX_STATES = 1 << 14
"""Of a step, that the fit sees: it has two dozen parameters, and its seconds and its window grow with them."""

NEWTON_STEPS, HALVINGS, TOLERANCE = 50, 30, 1e-7
"""Of the fit: most steps, most halvings of one, and the largest slope of a solution."""

BLOCK = 1024
"""Rows whose products a Hessian sums at a time."""


@dataclass(frozen=True)
class LabelledStates:
    """M states with their features, the outcome of their trace in reward units, and a weight each.

    ``importance`` makes some states count more than others; the fit scales it to a mean of 1, so that the
    regularisation keeps its strength.
    """

    features: Float[Tensor, "M F"]
    outcome: Float[Tensor, " M"]
    weight: Float[Tensor, " M"]
    importance: Float[Tensor, " M"]

    def some(self, chosen: Bool[Tensor, " M"]) -> LabelledStates:
        return LabelledStates(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @classmethod
    def joined(cls, steps: Sequence[LabelledStates]) -> LabelledStates:
        return cls(*(torch.cat([getattr(step, f.name) for step in steps]) for f in fields(cls)))


def fold_of_groups(group_ids: Sequence[Hashable]) -> Int[Tensor, " B"]:
    """Which fold each rollout belongs to: one per group up to 16 groups, else 8 folds by a hash of the id.

    Depends on the ids alone, never on the order of the rows.
    """
    distinct = {gid: i for i, gid in enumerate(sorted(set(group_ids), key=str))}
    if len(distinct) <= EXACT_GROUPS:
        return torch.tensor([distinct[gid] for gid in group_ids], dtype=torch.int64)
    return torch.tensor([zlib.crc32(str(gid).encode()) % FOLDS for gid in group_ids], dtype=torch.int64)


def sample_of_groups(group_ids: Sequence[Hashable], states: Int[Tensor, " B"], most: int) -> Bool[Tensor, " B"]:
    """Rollouts of so many groups that they have about ``most`` states together, all if they have no more; at least two
    groups. ``states`` (B,) is how many each rollout has.

    Which groups is up to a hash of their ids, so neither the order of the rows nor an outcome has a say.
    """
    if int(states.sum()) <= most:
        return torch.ones(len(states), dtype=torch.bool)
    size: dict[Hashable, int] = {}
    for gid, number in zip(group_ids, states.tolist(), strict=True):
        size[gid] = size.get(gid, 0) + number
    chosen: set[Hashable] = set()
    total = 0
    for gid in sorted(size, key=lambda gid: (zlib.crc32(str(gid).encode()) >> 3, str(gid))):
        if len(chosen) >= 2 and total + size[gid] > most:
            break
        chosen.add(gid)
        total += size[gid]
    return torch.tensor([gid in chosen for gid in group_ids])


def fit_logistic(
    features: Float[Tensor, "M F"],
    outcome: Float[Tensor, " M"],
    weights: Float[Tensor, "M K"],
    l2: float,
    offset: Float[Tensor, " M"] | None = None,
    start: Float[Tensor, "1 F_plus_1"] | None = None,
) -> Float[Tensor, "K F_plus_1"]:
    """K logistic regressions on the same rows, each with its own row weights, solved side by side.

    Minimises Σ_m w_mk·BCE(σ(z_mk·β_k + c_k + o_m), y_m) + l2/2·|β_k|² for every k (the intercept is free),
    where z are the features standardised with problem k's own weights: rows of weight 0 have no influence at
    all; o is the offset, 0 unless given. ``start`` are raw coefficients near the solution. Newton's method, each
    problem's step halved while it would climb: with two dozen parameters half a dozen passes over the rows solve
    it, where a quasi-Newton method takes several times as many (torch's L-BFGS, four times the seconds). Returns
    coefficients of the raw features, intercept last.
    """
    rows = torch.nn.functional.pad(features, (0, 1), value=1.0)
    to_raw = _from_standardised(features, weights)
    ridge = torch.full((rows.shape[1],), float(l2), dtype=rows.dtype)
    ridge[-1] = 0.0
    at = torch.zeros(weights.shape[1], rows.shape[1], dtype=rows.dtype)
    if start is not None:
        at = torch.linalg.solve(to_raw, start.expand_as(at)[:, None], left=False)[:, 0]

    def look(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of every problem (K,), and the probability of every row (M, K)."""
        logits = rows @ (at[:, None] @ to_raw)[:, 0].T
        if offset is not None:
            logits += offset[:, None]
        # torch's own softplus takes four times as long
        losses = torch.exp(-logits.abs()).log1p_().add_(logits.clamp(min=0)).sub_(outcome[:, None] * logits)
        return losses.mul_(weights).sum(0) + 0.5 * (ridge * at**2).sum(1), logits.sigmoid_()

    loss, probability = look(at)
    curvature, before = torch.empty(0), 0.0
    for _ in range(NEWTON_STEPS):
        slope = ((probability - outcome[:, None]) * weights).T @ rows
        slope = (to_raw @ slope[:, :, None])[:, :, 0] + ridge * at
        steepest = float(slope.abs().max())
        if not steepest >= TOLERANCE:  # a NaN too
            break
        if steepest > before / 10:  # else steps are good enough with the curvature at hand: it costs most
            curvature = _curvature(rows, weights * probability * (1 - probability), to_raw, ridge)
        before = steepest
        step = torch.linalg.solve(curvature, slope)
        expected = (slope * step).sum(1)
        length = torch.ones_like(loss)
        for _ in range(HALVINGS):
            further = at - length[:, None] * step
            lower, probability = look(further)
            climbs = lower > loss - 1e-4 * length * expected + 1e-12 * loss.abs()
            if not climbs.any():
                break
            length = torch.where(climbs, length / 2, length)
        at, loss = further, lower
    return (at[:, None] @ to_raw)[:, 0]


def _from_standardised(
    features: Float[Tensor, "M F"], weights: Float[Tensor, "M K"]
) -> Float[Tensor, "K F_plus_1 F_plus_1"]:
    """For every problem the matrix that makes raw coefficients of those of its standardised features, as rows."""
    share = weights / weights.sum(0).clamp(min=1e-12)
    center = share.T @ features
    variance = share.T @ features**2 - center**2
    scale = torch.where(variance > 1e-12, variance.clamp(min=0).sqrt(), 1.0)
    to_raw = torch.diag_embed(torch.nn.functional.pad(1 / scale, (0, 1), value=1.0))
    to_raw[:, :-1, -1] = -center / scale
    return to_raw


def _curvature(
    rows: Float[Tensor, "M F_plus_1"],
    weights: Float[Tensor, "M K"],
    to_raw: Float[Tensor, "K F_plus_1 F_plus_1"],
    ridge: Float[Tensor, " F_plus_1"],
) -> Float[Tensor, "K F_plus_1 F_plus_1"]:
    """Hessians in standardised coordinates; a little more on the diagonal, where nothing in the rows tells."""
    problems, width = weights.shape[1], rows.shape[1]
    products = rows.new_zeros(problems * width, width)
    for part, own in zip(
        rows.split(BLOCK), weights.split(BLOCK), strict=True
    ):  # so that temporaries stay in the cache
        products.addmm_((own[:, :, None] * part[:, None, :]).flatten(1).T, part)
    found = to_raw @ products.view(problems, width, width) @ to_raw.mT
    found.diagonal(dim1=1, dim2=2).add_(ridge + 1e-9)
    return found


class OutcomeCalibrator:
    """A fit that is refreshed at every step on the batch and a window of ``window`` past steps.

    None: of ``LEAST_STEPS``, or of as many as have ``LEAST_ROLLOUTS`` together. With ``shift_only`` it has one parameter,
    V̂ ← σ(logit V̂ + c), the logit being the first feature. Of a step at most about ``max_states`` states are to be fitted
    (``sample_of_groups``). Its state (``state_dict``) belongs into a
    checkpoint; a resumed run then continues as an uninterrupted one would.
    """

    def __init__(
        self, window: int | None = None, l2: float = 1.0, shift_only: bool = False, max_states: int = MAX_STATES
    ) -> None:
        self.window = window
        self.l2 = l2
        self.shift_only = shift_only
        self.max_states = max_states
        self._past: deque[LabelledStates] = deque()
        self._solutions: dict[str, Tensor] = {}
        """Of the last step; the next one has little way to go from there, and where it arrives does not depend on it."""

    def span(self, outcomes: Float[Tensor, " B"]) -> tuple[float, float]:
        """Lowest and highest outcome, between which values lie: of the past steps where those differ, else with
        the batch at hand, whose own outcomes a value should rather not know."""
        past = torch.cat([torch.zeros(0, dtype=torch.float64), *(p.outcome.double() for p in self._past)])
        for known in (past, torch.cat([past, outcomes.double()])):
            if known.numel() and float(known.max() - known.min()) > 1e-6:
                return float(known.min()), float(known.max())
        return 0.0, 0.0

    def calibrate(
        self,
        states: LabelledStates,
        fold: Int[Tensor, " M"],
        counted: Bool[Tensor, " M"] | None = None,
        *,
        remember: bool = True,
    ) -> Float[Tensor, " M"] | None:
        """Cross-fitted values of the states, in reward units: fold k is predicted by a fit without fold k.

        The fit sees the ``counted`` states, None for all, and the past. Returns None where all outcomes are the same,
        batch and window together: nothing to learn from. The batch then joins the window, unless ``remember`` is false.
        """
        found = self._fit(states, fold, counted, by_importance=False)
        if remember:
            self.remember(states, counted)
        return found

    def baselines(
        self, states: LabelledStates, fold: Int[Tensor, " M"], counted: Bool[Tensor, " M"] | None = None
    ) -> Float[Tensor, " M"] | None:
        """The same fit of all features with states weighted by their importance; the window stays as it is."""
        return self._fit(states, fold, counted, by_importance=True)

    def remember(self, states: LabelledStates, counted: Bool[Tensor, " M"] | None = None) -> None:
        """Take the step into the window. Past steps with another number of features, from the checkpoint of a version
        that had others, are forgotten."""
        self._forget_other_features(states.features.shape[1])
        self._past.append(states if counted is None else states.some(counted))
        self._forget_old()

    def notes(self) -> dict[str, float]:
        """Metrics of the last step's fit; none here."""
        return {}

    def _forget_old(self) -> None:
        """Keep the window; the weights of a rollout's states add up to 1."""
        rollouts = [float(past.weight.sum()) for past in self._past]
        while self._past and self._is_spare(rollouts):
            self._past.popleft()
            rollouts = rollouts[1:]

    def _is_spare(self, rollouts: list[float]) -> bool:
        """Whether the window does without the oldest step."""
        if self.window is not None:
            return len(rollouts) > self.window
        return len(rollouts) > LEAST_STEPS and sum(rollouts[1:]) >= LEAST_ROLLOUTS - 0.5

    def _fit(
        self,
        states: LabelledStates,
        fold: Int[Tensor, " M"],
        counted: Bool[Tensor, " M"] | None,
        *,
        by_importance: bool,
    ) -> Float[Tensor, " M"] | None:
        with torch.no_grad():
            self._forget_other_features(states.features.shape[1])
            low, high = self.span(states.outcome)
            if high - low < 1e-6:
                return None
            distinct, column = fold.unique(return_inverse=True)
            seen = states if counted is None else states.some(counted)
            own = column if counted is None else column[counted]
            known = LabelledStates.joined([seen, *self._past])
            features, outcome, weight, importance = (getattr(known, f.name).double() for f in fields(known))
            unit = ((outcome - low) / (high - low)).clamp(0, 1)
            held_out = torch.zeros(len(outcome), len(distinct), dtype=torch.bool)
            held_out[torch.arange(len(own)), own] = True
            shift_only = self.shift_only and not by_importance
            counts = importance if by_importance else torch.ones_like(importance)
            used, offset = _used(features, shift_only)
            kept = _counted(torch.where(held_out, 0.0, weight[:, None]), counts)
            kind = "baselines" if by_importance else "values"
            start = self._solutions.get(kind)
            if start is not None and start.shape[1] != used.shape[1] + 1:  # of a version with other features
                start = None
            beta = fit_logistic(used, unit, kept, self.l2, offset, start)
            self._solutions[kind] = beta.mean(0, keepdim=True)
            used, offset = _used(states.features.double(), shift_only)
            logits = (used * beta[column, :-1]).sum(1) + beta[column, -1] + offset
            return low + torch.sigmoid(logits).float() * (high - low)

    def _forget_other_features(self, number: int) -> None:
        self._past = deque(past for past in self._past if past.features.shape[1] == number)

    def state_dict(self) -> dict[str, Any]:
        """Tensors only, so that ``torch.load(weights_only=True)`` reads it."""
        return {
            "features": [p.features for p in self._past],
            "outcome": [p.outcome for p in self._past],
            "weight": [p.weight for p in self._past],
            "importance": [p.importance for p in self._past],
            "solutions": dict(self._solutions),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._past.clear()
        equal = [torch.ones_like(weight) for weight in state["weight"]]
        importance = state.get("importance", equal)  # checkpoints of versions without it
        for parts in zip(state["features"], state["outcome"], state["weight"], importance, strict=True):
            self._past.append(LabelledStates(*parts))
        self._forget_old()
        self._solutions = dict(state.get("solutions", {}))


def _used(features: Float[Tensor, "M F"], shift_only: bool) -> tuple[Float[Tensor, "M F"], Float[Tensor, " M"]]:
    """What a fit weighs, and what it takes as it is."""
    if shift_only:
        return features[:, :0], features[:, 0]
    return features, torch.zeros_like(features[:, 0])


def _counted(weights: Float[Tensor, "M K"], importance: Float[Tensor, " M"]) -> Float[Tensor, "M K"]:
    """Row weights times importance, with the sum of every problem as it was. A row of weight 0 has no say in it."""
    product = weights * importance[:, None]
    return product * (weights.sum(0) / product.sum(0).clamp(min=1e-12))
