"""rredcot: segment-level credit assignment for reasoning models, as a plugin for stock verl.

The core (everything exported here) needs torch and numpy only; ``probe_log_probs`` takes any Hugging Face
causal language model. What talks to verl lives in ``rredcot_plugin.integrations``.
"""

from typing import TYPE_CHECKING, Any

from rredcot_plugin import baselines as _baselines  # noqa: F401  registers
from rredcot_plugin import segmenters as _segmenters  # noqa: F401  registers
from rredcot_plugin.baselines import Evidence
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit import shapers as _shapers  # noqa: F401  registers
from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.credit.hierarchy import hierarchical_gae
from rredcot_plugin.credit.redistribution import redistribute, spread_to_tokens
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.registry import (
    get_baseline,
    get_segmenter,
    get_shaper,
    get_value_estimator,
    list_baselines,
    list_segmenters,
    list_shapers,
    list_value_estimators,
    register_baseline,
    register_segmenter,
    register_shaper,
    register_value_estimator,
)
from rredcot_plugin.testing import check_segmenter
from rredcot_plugin.types import Credit, Rollouts, Segments
from rredcot_plugin.values import importance_values
from rredcot_plugin.values.base import Estimate, Probed

if TYPE_CHECKING:
    from rredcot_plugin.probes import probe_log_probs as probe_log_probs

__version__ = "0.1.0"

__all__ = [
    "Credit",
    "Estimate",
    "Evidence",
    "Probed",
    "RRedCoTConfig",
    "Rollouts",
    "Segments",
    "assign_credit",
    "check_segmenter",
    "get_baseline",
    "get_segmenter",
    "get_shaper",
    "get_value_estimator",
    "hierarchical_gae",
    "importance_values",
    "list_baselines",
    "list_segmenters",
    "list_shapers",
    "list_value_estimators",
    "probe_log_probs",
    "redistribute",
    "register_baseline",
    "register_segmenter",
    "register_shaper",
    "register_value_estimator",
    "segment_gae",
    "spread_to_tokens",
]


def __getattr__(name: str) -> Any:
    # probes pull in transformers where they are used; importing the core must not
    if name == "probe_log_probs":
        from rredcot_plugin.probes import probe_log_probs

        return probe_log_probs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
