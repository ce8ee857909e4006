"""State values: how much reward the actor may expect at each boundary. One method a file.

Importing this package registers the estimators that ship with it.
"""

from rredcot_plugin.values.confidence import ConfidenceEstimator
from rredcot_plugin.values.importance import (
    GroundTruthEstimator,
    OwnRatioEstimator,
    SelfNormalizedEstimator,
    SupportEstimator,
    importance_values,
)

__all__ = [
    "ConfidenceEstimator",
    "GroundTruthEstimator",
    "OwnRatioEstimator",
    "SelfNormalizedEstimator",
    "SupportEstimator",
    "importance_values",
]
