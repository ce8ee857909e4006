"""A segmenter of your own, given by file: a segment ends behind every equals sign.

    +algorithm.rredcot.segmenter='{path: examples/02_custom_segmenter.py, name: BehindEquals}'
    +algorithm.rredcot.segmenter_kwargs='{sign: "="}'

Run this file to check it and to see what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.segmenters import CutSegmenter


@dataclass(frozen=True)
class BehindEquals(CutSegmenter):
    """A segment ends behind every equals sign."""

    sign: str = "="

    def propose(self, trace):
        ends = [i + 1 for i, char in enumerate(trace.text) if char == self.sign]
        cuts = trace.tokens_from(ends)
        return cuts, np.ones(len(cuts))  # token numbers, and how much each is worth when some must go


if __name__ == "__main__":
    from rredcot_plugin.testing import check_segmenter, text_rollouts

    check_segmenter(BehindEquals())
    rollouts = text_rollouts(["2+3=5\n5*4=20\nThe answer is 20"])
    for number, start in enumerate(BehindEquals()(rollouts).starts[0].tolist()):
        print(f"segment {number} begins at {rollouts.texts[0][start:]!r}")
