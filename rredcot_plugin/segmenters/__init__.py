"""Segmenters: where one step of reasoning ends and the next begins. One method a file.

A segmenter is a callable ``Rollouts -> Segments``; options go to its constructor. Importing this package
registers the ones that ship with it.
"""

from rredcot_plugin.segmenters.fixed import FixedSegmenter
from rredcot_plugin.segmenters.hybrid import HybridSegmenter
from rredcot_plugin.segmenters.newline import NewlineSegmenter
from rredcot_plugin.segmenters.none import NoSegmenter

__all__ = ["FixedSegmenter", "HybridSegmenter", "NewlineSegmenter", "NoSegmenter"]
