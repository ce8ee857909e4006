"""A segmenter of your own, given by file: a segment ends after every equals sign.

    +algorithm.rredcot.segmenter='{path: examples/02_custom_segmenter.py, name: AfterEquals}'
    +algorithm.rredcot.segmenter_kwargs='{sign: "="}'

Run this file to check it and to see what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.segmenters import CutSegmenter


@dataclass(frozen=True)
class AfterEquals(CutSegmenter):
    """A segment ends after every equals sign."""

    sign: str = "="

    def propose(self, trace):
        ends = [i + 1 for i, char in enumerate(trace.text) if char == self.sign]
        return trace.tokens_from(ends)  # indices of the tokens at which a segment may begin


if __name__ == "__main__":
    from rredcot_plugin import check_segmenter
    from rredcot_plugin.testing import text_rollouts

    check_segmenter(AfterEquals())
    rollouts = text_rollouts(["2+3=5\n5*4=20\nThe answer is 20"])
    for number, start in enumerate(AfterEquals()(rollouts).starts[0].tolist()):
        print(f"segment {number} begins at {rollouts.texts[0][start:]!r}")
