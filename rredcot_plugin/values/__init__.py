"""State values: how much reward the actor may expect at each boundary. One method a file.

Importing this package registers the estimators that ship with it.
"""

from rredcot_plugin.values.answer_probability import (
    GroundTruthEstimator,
    OwnRatioEstimator,
    SelfNormalizedEstimator,
    SupportEstimator,
    importance_values,
)
from rredcot_plugin.values.attribution import AttentionEstimator, GradientEstimator
from rredcot_plugin.values.confidence import ConfidenceEstimator
from rredcot_plugin.values.critic import CriticEstimator
from rredcot_plugin.values.environment import EnvironmentEstimator
from rredcot_plugin.values.iterative import IterativeEstimator
from rredcot_plugin.values.mixture import MixtureEstimator
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator
from rredcot_plugin.values.reference import ReferenceEstimator
from rredcot_plugin.values.reward_model import RewardModelEstimator
from rredcot_plugin.values.same_state import SiblingsEstimator

__all__ = [
    "AttentionEstimator",
    "ConfidenceEstimator",
    "CriticEstimator",
    "EnvironmentEstimator",
    "GradientEstimator",
    "GroundTruthEstimator",
    "IterativeEstimator",
    "MixtureEstimator",
    "MonteCarloEstimator",
    "OwnRatioEstimator",
    "ReferenceEstimator",
    "RewardModelEstimator",
    "SelfNormalizedEstimator",
    "SiblingsEstimator",
    "SupportEstimator",
    "importance_values",
]
