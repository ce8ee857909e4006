"""A shaper of your own, registered by decorator under a name of its own: half of the answer's credit goes to the segment before it.

    VERL_USE_EXTERNAL_MODULES=05_custom_shaper PYTHONPATH=examples ... \
        '+algorithm.rredcot.shapers=[{name: halve_answer, options: {share: 0.5}}]'

verl imports the module in each of its processes, which runs the decorator. Run this file to see what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import rredcot_plugin as rr


@rr.register_shaper("halve_answer", overwrite=True)
@dataclass(frozen=True)
class HalveAnswer:
    """The answer segment gives ``share`` of its δ to the segment before it; the sum stays."""

    share: float = 0.5

    def __call__(self, deltas, segments, outcome, stats):
        last = (segments.num_segments - 1).clamp(min=0)[:, None]
        moved = torch.where(segments.num_segments[:, None] > 1, deltas.gather(1, last) * self.share, 0.0)
        before = (last - 1).clamp(min=0)
        return deltas.scatter_add(1, last, -moved).scatter_add(1, before, moved)


if __name__ == "__main__":
    from rredcot_plugin.testing import text_rollouts

    texts = ["2+3=5\n5*4=20\nThe answer is 20", "2+3=6\nSo it is 24\nThe answer is 24"]
    rollouts = text_rollouts(texts, outcomes=[1.0, 0.0])
    for shapers in ((), ("halve_answer",)):
        credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="newline", shapers=shapers))
        print(f"segment rewards with shapers={shapers}:", credit.segment_rewards)
