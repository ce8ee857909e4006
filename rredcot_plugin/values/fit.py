"""The calibrator's fits of one step: which states they see, and the fitted numbers in their places."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.checks import check_shape
from rredcot_plugin.groups import Outcomes, group_stats
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import boundary_features
from rredcot_plugin.values.labelled_states import LabelledStates, fold_of_groups, sample_of_groups
from rredcot_plugin.values.prefix_numbers import PrefixNumbers, prefix_numbers

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


WEIGHT = "rredcot/credit/credit_weight/mean"


@dataclass(frozen=True)
class Labelled:
    """The M states that a fit sees or values, at ``at`` (B, S), with their folds; ``counted`` of them are fitted."""

    states: LabelledStates
    fold: Int[Tensor, " M"]
    counted: Bool[Tensor, " M"]
    at: Bool[Tensor, "B S"]

    def in_place(
        self,
        fitted: Float[Tensor, " M"] | None,
        otherwise: Float[Tensor, "B S"],
        elsewhere: Float[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S"]:
        """The fitted numbers in their places, ``elsewhere`` around them; ``otherwise`` everywhere if there are none."""
        if fitted is None:
            return otherwise
        result = (otherwise if elsewhere is None else elsewhere).clone()
        result[self.at] = fitted.to(result.dtype)
        return result


@dataclass(eq=False)
class StepFit:
    """Regressions of the outcome on the features of every state after a prompt, cross-fitted over groups.

    Features are computed when the first fit asks for them. The step joins the calibrator's window with ``remember``,
    after all fits of the step.
    """

    rollouts: Rollouts
    segments: Segments
    raw: Float[Tensor, "B S"]
    """Values as the estimator gave them: a feature of each state."""
    outcomes: Outcomes
    calibrator: OutcomeCalibrator
    prefixes: PrefixNumbers | None = None
    """Of the states; None: computed from the rollouts."""
    _state_weight: Float[Tensor, "B S"] | None = None
    _changes: Float[Tensor, "B S"] | None = None
    _paid: Float[Tensor, "B S"] | None = None
    _luck: tuple[Float[Tensor, "B S"], Float[Tensor, "B S"], Float[Tensor, " M"]] | None = None
    _notes: dict[str, float] = field(default_factory=dict)

    def values(self, prior: Float[Tensor, " B"]) -> tuple[Float[Tensor, "B S"], dict[str, float]]:
        """Calibrated V̂ of every state, and metrics of the fit; ``prior`` everywhere where nothing can be fitted."""
        labelled = self.labelled
        fitted = self.calibrator.calibrate(labelled.states, labelled.fold, labelled.counted, remember=False)
        notes = {"rredcot/fallback/uncalibrated/mean": float(fitted is None)} | self.calibrator.notes()
        return labelled.in_place(fitted, prior[:, None].expand_as(self.raw), self.raw), notes

    def baselines(
        self,
        state_weight: Float[Tensor, "B S"],
        otherwise: Float[Tensor, "B S"],
        paid: Float[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S"]:
        """The same regression with states weighted by ``state_weight`` ≥ 0, of the outcome and what was ``paid`` on the way
        from each state on; ``otherwise`` at the prompt, and everywhere where nothing can be fitted. Past steps keep the
        weights that they came with.

        Raises:
            ValueError: ``state_weight`` or ``otherwise`` without a number per state.
        """
        check_shape("state_weight", state_weight, self.raw.shape)
        check_shape("otherwise", otherwise, self.raw.shape)
        self._state_weight, self._paid = state_weight, paid
        labelled = self._weighted()
        fitted = self.calibrator.baselines(labelled.states, labelled.fold, labelled.counted)
        return labelled.in_place(fitted, otherwise)

    def surprises(self, changes: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """h = δ̂ − E[δ̂ | s] of every segment after the first, s being the state where it starts; 0 elsewhere.

        ``changes`` are δ̂, in reward units. Past steps join the regression with those that they came with.
        """
        self._changes = changes
        labelled = self._weighted()
        if not bool(labelled.at.any()):
            return torch.zeros_like(changes)
        expected = self.calibrator.expected_changes(labelled.states, labelled.fold, labelled.counted)
        return labelled.in_place(labelled.states.change - expected, torch.zeros_like(changes))

    def weigh_luck(self, rest: Float[Tensor, "B S"], luck: Float[Tensor, "B S"]) -> float:
        """The weight c of ``luck``, the surprises from each state on, that past steps advise (``values.luck``); ``rest`` is
        what each state left open of the return. The step joins their evidence for later ones."""
        weight, foreseen = self.calibrator.weigh_luck(self.labelled.states, int(self.outcomes.finite.sum()))
        self._luck = rest, luck, foreseen
        self._notes = {WEIGHT: weight}
        return weight

    def remember(self) -> dict[str, float]:
        """Let the step join the calibrator's window, if a fit has used it. Returns metrics of what followed the values."""
        if "labelled" in self.__dict__:
            labelled = self._weighted()
            self.calibrator.remember(labelled.states, labelled.counted)
        return self._notes

    def _weighted(self) -> Labelled:
        """The states with the weights that a baseline gave them, alike if none did, and with δ̂ and rewards on the way if it
        was told."""
        labelled, states = self.labelled, self.labelled.states
        if self._state_weight is not None:
            states = replace(states, importance=self._state_weight[labelled.at].double())
        if self._changes is not None:
            states = replace(states, change=self._changes[labelled.at].double())
        if self._paid is not None:
            states = replace(states, paid=self._paid[labelled.at].double())
        if self._luck is not None:
            rest, luck, foreseen = self._luck
            states = replace(
                states, rest=rest[labelled.at].double(), luck=luck[labelled.at].double(), foreseen=foreseen
            )
        return replace(labelled, states=states)

    @cached_property
    def labelled(self) -> Labelled:
        """Features, outcome and weight of every state after a prompt."""
        segments, score, finite = self.segments, self.outcomes.score, self.outcomes.finite
        calibrator, group_ids = self.calibrator, self.rollouts.group_ids
        low, high = calibrator.span(score[finite])
        width = max(high - low, 1e-6)
        stats = group_stats(score, group_ids, finite)
        unit = ((self.raw - low) / width).clamp(0, 1)
        others, outcome = (((x - low) / width).clamp(0, 1) for x in (stats.others_mean, score))
        prefixes = prefix_numbers(self.rollouts, segments) if self.prefixes is None else self.prefixes
        looked_at = boundary_features(prefixes, segments, unit, stats, others, outcome, finite)
        at = segments.exists & finite[:, None]
        at = at & (torch.arange(segments.max_segments, device=at.device)[None, :] > 0)
        weight = (at / at.sum(dim=1, keepdim=True).clamp(min=1))[at].double()  # every trace counts once
        labels = score[:, None].expand_as(self.raw)[at].double()
        states = LabelledStates(looked_at[at], labels, weight, torch.ones_like(weight))
        if self.rollouts.versions is not None:
            version = self.rollouts.versions.to(at.device).double()[:, None].expand_as(at)[at]
            states = replace(states, version=version)
        folds = fold_of_groups(group_ids).to(at.device)
        states_each = calibrator.states_of_rollout(len(weight) / max(1, int(at.any(dim=1).sum())))
        sampled = sample_of_groups(group_ids, states_each, calibrator.max_states).to(at.device)
        fold, counted = (x[:, None].expand_as(at)[at] for x in (folds, sampled))
        return Labelled(states, fold, counted, at)
