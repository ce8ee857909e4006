"""State values: how much reward the actor may expect at each boundary. One method a file.

Importing this package registers the estimators that ship with it.
"""

from rredcot_plugin.values.importance import (
    OwnRatioEstimator,
    SelfNormalizedEstimator,
    SupportEstimator,
    importance_values,
)

__all__ = ["OwnRatioEstimator", "SelfNormalizedEstimator", "SupportEstimator", "importance_values"]
