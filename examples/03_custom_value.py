"""A value estimator of your own, given by dotted path: the share of lines so far that state an equation.

    PYTHONPATH=examples ... +algorithm.rredcot.value_estimator=03_custom_value:EquationShare

It reads texts only, so it names nothing to probe. Calibration (the default) puts it on the scale of the reward.
Run this file to see its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rredcot_plugin.values.base import NO_PROBES, Estimate


@dataclass(frozen=True)
class EquationShare:
    """(equations + prior) / (lines + 2·prior) before each boundary: a number in (0, 1)."""

    prior: float = 1.0

    proposes: ClassVar[str] = NO_PROBES  # no probes needed
    max_proposals: ClassVar[int] = 1

    def __call__(self, probed, *, rollouts, segments, clip=None):
        values = torch.zeros(segments.exists.shape)
        for row, starts in enumerate(segments.starts.tolist()):
            for state in range(int(segments.num_segments[row])):
                values[row, state] = self._share(self._text_before(rollouts, row, starts[state]))
        return Estimate(values, segments.num_segments > 0)

    def _share(self, text):
        lines = [line for line in text.splitlines() if line.strip()]
        equations = sum("=" in line for line in lines)
        return (equations + self.prior) / (len(lines) + 2 * self.prior)

    @staticmethod
    def _text_before(rollouts, row, start):
        tokens = int(rollouts.response_mask[row, :start].sum())
        return rollouts.texts[row][: int(rollouts.token_offsets[row][tokens - 1][1])] if tokens else ""


if __name__ == "__main__":
    import rredcot_plugin as rr
    from rredcot_plugin.testing import text_rollouts

    texts = ["2+3=5\n5*4=20\nThe answer is 20", "2+3=6\nSo it is 24\nThe answer is 24"]
    rollouts = text_rollouts(texts, outcomes=[1.0, 0.0])
    config = rr.RRedCoTConfig(
        segmenter="newline", value_estimator="03_custom_value:EquationShare", calibrate="none"
    )
    print("values before each segment:", rr.assign_credit(rollouts, config).values)
