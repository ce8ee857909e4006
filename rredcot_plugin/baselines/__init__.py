"""Baselines: what the advantage of a segment or token is measured from. One method per file.

A baseline is a callable ``Evidence -> (B, S)`` or ``(B, T)`` tensor; options go to its constructor. Importing this
package registers the ones that ship with it.
"""

from rredcot_plugin.baselines.base import Baseline, Evidence
from rredcot_plugin.baselines.least_variance import LeastVarianceBaseline
from rredcot_plugin.baselines.token import TokenBaseline
from rredcot_plugin.baselines.trace import TraceBaseline
from rredcot_plugin.baselines.value import ValueBaseline

__all__ = [
    "Baseline",
    "Evidence",
    "LeastVarianceBaseline",
    "TokenBaseline",
    "TraceBaseline",
    "ValueBaseline",
]
