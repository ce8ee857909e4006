"""Segmenters: where one step of reasoning ends and the next begins. One method a file.

A segmenter is a callable ``Rollouts -> Segments``; options go to its constructor. Importing this package
registers the ones that ship with it. `rredcot_plugin.testing.check_segmenter` checks one of your own.
The boundaries of all but those named ``..._retrospective`` are stopping times, which leaves the policy gradient exact.
"""

from rredcot_plugin.segmenters.adaptive import AdaptiveSegmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.code import CodeSegmenter
from rredcot_plugin.segmenters.entropy import EntropySegmenter
from rredcot_plugin.segmenters.fixed import FixedSegmenter
from rredcot_plugin.segmenters.hybrid import HybridSegmenter
from rredcot_plugin.segmenters.keyword import KeywordSegmenter
from rredcot_plugin.segmenters.nested import NestedSegmenter
from rredcot_plugin.segmenters.newline import NewlineSegmenter
from rredcot_plugin.segmenters.newline_entropy import NewlineEntropySegmenter
from rredcot_plugin.segmenters.none import NoSegmenter
from rredcot_plugin.segmenters.paragraph import ParagraphSegmenter
from rredcot_plugin.segmenters.probability import ProbabilitySegmenter
from rredcot_plugin.segmenters.retrospective import (
    AdaptiveRetrospective,
    HybridRetrospective,
    NewlineEntropyRetrospective,
)
from rredcot_plugin.segmenters.sentence import SentenceSegmenter
from rredcot_plugin.segmenters.think_answer import ThinkAnswerSegmenter
from rredcot_plugin.segmenters.turn import TurnSegmenter

__all__ = [
    "AdaptiveRetrospective",
    "AdaptiveSegmenter",
    "CodeSegmenter",
    "CutSegmenter",
    "EntropySegmenter",
    "FixedSegmenter",
    "HybridRetrospective",
    "HybridSegmenter",
    "KeywordSegmenter",
    "NestedSegmenter",
    "NewlineEntropyRetrospective",
    "NewlineEntropySegmenter",
    "NewlineSegmenter",
    "NoSegmenter",
    "ParagraphSegmenter",
    "ProbabilitySegmenter",
    "SentenceSegmenter",
    "ThinkAnswerSegmenter",
    "TurnSegmenter",
]
