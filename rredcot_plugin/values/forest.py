"""``calibrate: trees``: the logistic fit and, beside it, extremely randomised trees on past steps.

What a state is worth is not a sum of what its features say: a sibling's failure weighs differently where nobody else came
this way. Trees see that, given some hundred rollouts to learn it from; the logistic fit does with few, and follows the
batch at hand. Their mean is as near to Monte-Carlo values as the logistic fit or nearer, the more so the longer the past
(docs/evidence/values.md). Source of the trees: Geurts, Ernst and Wehenkel, *Extremely randomized trees*, Machine Learning 63
(2006), in scikit-learn.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.labelled_states import LabelledStates
from rredcot_plugin.values.window import LEAST_ROLLOUTS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

TREES, LEAF_STATES, SEED = 64, 10, 0

MOST_STATES = 1 << 14
"""That one tree sees, drawn anew for each, where the past has more: bounds the seconds of a fit to about one."""


class ForestCalibrator(OutcomeCalibrator):
    """V̂ ← (1 − w)·V̂_logistic + w·V̂_trees, w = ½·min(1, n/512) for n past rollouts; without any, the logistic fit.

    Trees are grown on past steps alone, and features hold outcomes of other rollouts only, so a trace's own outcome does
    not reach its values: a baseline made of them leaves the gradient unbiased. ``baselines`` stay the logistic fit's.
    Rows are sorted before they are fitted: where the batch has a rollout does not matter.

    Raises:
        ValueError: scikit-learn is not installed.
    """

    def __init__(self, window: int | None = None, l2: float = 1.0) -> None:
        if find_spec("sklearn") is None:
            raise ValueError("calibrate='trees': scikit-learn is not installed; pip install 'rredcot[trees]'")
        super().__init__(window, l2)
        self._share = 0.0

    def calibrate(
        self,
        states: LabelledStates,
        fold: Int[Tensor, " M"],
        counted: Bool[Tensor, " M"] | None = None,
        *,
        remember: bool = True,
    ) -> Float[Tensor, " M"] | None:
        """Values of the states in reward units, as the logistic fit gives them, and trees where there is a past."""
        past, (low, high) = self._known(states.features.shape[1]), self.span(states.outcome)
        found, self._share = super().calibrate(states, fold, counted, remember=remember), 0.0
        if found is None or past is None or len(states.outcome) == 0:
            return found
        self._share = 0.5 * min(1.0, float(past.weight.sum()) / LEAST_ROLLOUTS)
        unit = ((past.outcome - low) / (high - low)).clamp(0, 1)
        grown = _grow(past.features, unit, past.weight).predict(_rows(states.features))
        trees = low + torch.from_numpy(grown).to(found) * (high - low)
        return torch.lerp(found, trees, self._share)

    def notes(self) -> dict[str, float]:
        """Those of the logistic fit, and w of the last step."""
        return super().notes() | {"rredcot/value/trees_share/mean": self._share}

    def _known(self, features: int) -> LabelledStates | None:
        """All states of the past that count, or None: no past, or one without two different outcomes."""
        self._forget_other_features(features)
        if not self._past:
            return None
        past = LabelledStates.joined(self._past)
        past = past.some(past.weight > 0)
        differ = len(past.outcome) > 0 and float(past.outcome.max() - past.outcome.min()) > 1e-6
        return past if differ else None


def _grow(features: Float[Tensor, "M F"], unit: Float[Tensor, " M"], weight: Float[Tensor, " M"]) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor  # an extra; half a second to import

    rows, labels, weights = _rows(features), unit.double().cpu().numpy(), weight.double().cpu().numpy()
    order = np.lexsort([weights, labels, *rows.T])
    many = len(rows) > MOST_STATES
    forest = ExtraTreesRegressor(
        TREES,
        min_samples_leaf=LEAF_STATES,
        max_features="sqrt",
        bootstrap=many,
        max_samples=MOST_STATES if many else None,
        random_state=SEED,
    )
    return forest.fit(rows[order], labels[order], sample_weight=weights[order])


def _rows(features: Float[Tensor, "M F"]) -> np.ndarray:
    """What trees take: finite single precision."""
    rows: np.ndarray = np.nan_to_num(features.float().cpu().numpy())
    return rows
