"""``calibrate``: turn raw values into probabilities of the outcome, with labels that are free.

How probable the right answer is *now* lies far below the value of continuing to think, until the last
segments. Outcomes are free labels: a small logistic regression of R on features of the prefix, fitted on
other groups of the batch and on the last steps, gives calibrated values that stay independent of the
trace's own outcome (``outcome``). ``group_shift`` fits one number instead, what must be added to the logit of
every raw value. Source: docs/reference/math.md, "calibration".
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.logistic import fit_logistic
from rredcot_plugin.values.luck import foreseen_luck, least_error_weight
from rredcot_plugin.values.ridge import fit_ridge
from rredcot_plugin.values.window import mean_age, within

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

MAX_STATES = 1 << 14
"""Of a step, that the fit sees: it has two dozen parameters, and its seconds and its window grow with them."""


NEEDED = ("features", "outcome", "weight")
"""What every version has written of a past step."""

FITTED = ("features", "outcome", "weight", "importance", "paid")


class OutcomeCalibrator:
    """A fit that is refreshed at every step on the batch and a window of ``window`` past steps.

    None: of four, or of as many as have 512 rollouts together. A rollout's step is the version of the policy that finished it,
    where the host tells it, else that of its arrival (`values.window`). With ``shift_only`` it has one parameter,
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
        self._past: list[LabelledStates] = []
        self._solutions: dict[str, Tensor] = {}
        """Of the last step; the next one has little way to go from there, and where it arrives does not depend on it."""
        self._age = 0.0

    def span(self, outcomes: Float[Tensor, " B"], *, paid: bool = False) -> tuple[float, float]:
        """Lowest and highest outcome, between which values lie: of the past steps where those differ, else with
        the batch at hand, whose own outcomes a value should rather not know. ``paid``: rewards on the way are in them."""
        labels = (_labels(p.outcome.double(), p.paid.double(), paid=paid) for p in self._past)
        past = torch.cat([torch.zeros(0, dtype=torch.float64), *labels])
        for known in (past, torch.cat([past, outcomes.double()])):
            if known.numel() and float(known.max() - known.min()) > 1e-6:
                return float(known.min()), float(known.max())
        return 0.0, 0.0

    def states_of_rollout(self, now: float) -> float:
        """How many states a rollout of the past steps had on average; without any, ``now``."""
        rollouts = sum(float(p.weight.sum()) for p in self._past)  # every trace weighs 1
        return sum(len(p.weight) for p in self._past) / rollouts if rollouts else now

    @property
    def lowest(self) -> float | None:
        """The lowest outcome of the past steps; None without any."""
        return min((float(p.outcome.min()) for p in self._past if len(p.outcome)), default=None)

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
        batch and window together: nothing to learn from; and where there are no states: nothing to value. The batch then
        joins the window, unless ``remember`` is false.
        """
        found = self._fit(states, fold, counted, by_importance=False)
        seen = states if counted is None else states.some(counted)
        self._age = mean_age([*self._past, seen])
        if remember:
            self.remember(seen)
        return found

    def baselines(
        self, states: LabelledStates, fold: Int[Tensor, " M"], counted: Bool[Tensor, " M"] | None = None
    ) -> Float[Tensor, " M"] | None:
        """The same fit of all features with states weighted by their importance, of the outcome and rewards on the way; the
        window stays as it is."""
        return self._fit(states, fold, counted, by_importance=True)

    def expected_changes(
        self, states: LabelledStates, fold: Int[Tensor, " M"], counted: Bool[Tensor, " M"] | None = None
    ) -> Float[Tensor, " M"]:
        """E[δ̂ | s] of every state: a ridge regression of δ̂ on its features, in reward units, cross-fitted as the values
        are. It sees the past steps of which δ̂ is known; the window stays as it is."""
        with torch.no_grad():
            distinct, column = fold.unique(return_inverse=True)
            seen, own = (states, column) if counted is None else (states.some(counted), column[counted])
            width = states.features.shape[1]
            known = LabelledStates.joined([seen, *(p for p in self._past if p.features.shape[1] == width)])
            own = torch.nn.functional.pad(own, (0, len(known.weight) - len(own)), value=-1)
            told = known.change.isfinite()
            weights = torch.where(own[:, None] == torch.arange(len(distinct)), 0.0, known.weight.double()[:, None])
            beta = fit_ridge(known.features.double()[told], known.change.double()[told], weights[told], self.l2)
            found = (states.features.double() * beta[column, :-1]).sum(1) + beta[column, -1]
            # a line goes on for ever where features differ from all that was fitted; no value changes by more than outcomes
            # differ, or than values were seen to change, which may count rewards on the way or be wide of the outcomes
            low, high = self.span(states.outcome)
            sizes = torch.where(weights[told] > 0, known.change.double()[told].abs()[:, None], 0.0)
            most = torch.nn.functional.pad(sizes, (0, 0, 1, 0), value=high - low).amax(0)[column]
            return torch.minimum(torch.maximum(found, -most), most).float()

    def weigh_luck(self, states: LabelledStates, rollouts: int) -> tuple[float, Float[Tensor, " M"]]:
        """c of a step of so many ``rollouts`` and the luck foreseen of its states (``values.luck``), both by past steps alone:
        no outcome of this one has a say. Without two past steps of which luck is known, c is 0."""
        self._forget_other_features(states.features.shape[1])
        with torch.no_grad():
            past = LabelledStates.joined([*self._past, states.some(torch.zeros_like(states.weight).bool())])
            low, high = self.span(states.outcome)
            seen = float(past.luck.abs().nan_to_num().max()) if len(past.luck) else 0.0  # as in expected_changes
            foreseen = foreseen_luck(past, states.features, max(high - low, seen), self.l2)
            return least_error_weight(past, rollouts), foreseen

    def remember(self, states: LabelledStates, counted: Bool[Tensor, " M"] | None = None) -> None:
        """Take the step into the window. Past steps with another number of features, from the checkpoint of a version
        that had others, are forgotten."""
        self._forget_other_features(states.features.shape[1])
        self._past.append(states if counted is None else states.some(counted))
        self._forget_old()

    def notes(self) -> dict[str, float]:
        """Metrics of the last step's fit: how old the rollouts are that it saw."""
        return {"rredcot/value/window_age/mean": self._age}

    def _forget_old(self) -> None:
        """Keep the window."""
        self._past = within(self._past, self.window, self.max_states)

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
            own_labels = _labels(states.outcome, states.paid, paid=by_importance)
            low, high = self.span(own_labels, paid=by_importance)
            if high - low < 1e-6 or not len(fold):
                return None
            distinct, column = fold.unique(return_inverse=True)
            seen = states if counted is None else states.some(counted)
            own = column if counted is None else column[counted]
            known = LabelledStates.joined([seen, *self._past])
            features, outcome, weight, importance, paid = (getattr(known, name).double() for name in FITTED)
            outcome = _labels(outcome, paid, paid=by_importance)
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
        self._past = [past for past in self._past if past.features.shape[1] == number]

    def state_dict(self) -> dict[str, Any]:
        """Tensors only, so that ``torch.load(weights_only=True)`` reads it."""
        columns = {own.name: [getattr(p, own.name) for p in self._past] for own in fields(LabelledStates)}
        return {**columns, "solutions": dict(self._solutions)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the calibrator whose ``state_dict`` this is would.

        Raises:
            ValueError: a state without features, outcomes or weights of its steps: damaged, or of something else.
        """
        for name in NEEDED:
            if not isinstance(state.get(name), list):
                raise ValueError(
                    f"rredcot's state of past steps is damaged: expected a list under {name!r}, a tensor for each past step, "
                    f"got {state.get(name)!r}"
                )
        # checkpoints of versions without a column
        missing = {"importance": [torch.ones_like(weight) for weight in state["weight"]]}
        unknown = [None] * len(state["weight"])
        columns = [state.get(own.name, missing.get(own.name, unknown)) for own in fields(LabelledStates)]
        self._past = [LabelledStates(*parts) for parts in zip(*columns, strict=True)]
        self._forget_old()
        self._solutions = dict(state.get("solutions", {}))


def _labels(outcome: Float[Tensor, " M"], on_the_way: Float[Tensor, " M"], *, paid: bool) -> Float[Tensor, " M"]:
    return outcome + on_the_way if paid else outcome


def _used(features: Float[Tensor, "M F"], shift_only: bool) -> tuple[Float[Tensor, "M F"], Float[Tensor, " M"]]:
    """What a fit weighs, and what it takes as it is."""
    if shift_only:
        return features[:, :0], features[:, 0]
    return features, torch.zeros_like(features[:, 0])


def _counted(weights: Float[Tensor, "M K"], importance: Float[Tensor, " M"]) -> Float[Tensor, "M K"]:
    """Row weights times importance, with the sum of every problem as it was. A row of weight 0 has no say in it."""
    product = weights * importance[:, None]
    return product * (weights.sum(0) / product.sum(0).clamp(min=1e-12))
