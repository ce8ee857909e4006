"""What estimates are compared with: one draw of a family's questions and rollouts, or several together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.agreement import Interval, Pairs
from lab.estimators import Workbench
from lab.rollouts import Reference


@dataclass(frozen=True)
class Judged:
    """The places of one draw at which estimates are compared; ``at`` are the judged rows."""

    bench: Workbench
    at: list[int]
    reference: Reference
    draw: int
    mistakes: dict[int, int]
    """Row -> segment of its first wrong line, for wrong rows with at least two segments."""

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and numbers of the states after the prompt."""
        counts = self.bench.segments[-1].num_segments.tolist()
        found = [(row, k) for row in self.at for k in range(1, counts[row])]
        rows, states = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return rows, states

    @property
    def outcomes(self) -> np.ndarray:
        found: np.ndarray = self.bench.batches[-1].rows.rollouts.outcomes.numpy()
        return found

    def prompts(self, rows: np.ndarray) -> np.ndarray:
        """Of these rows, named apart from those of other draws."""
        groups = self.bench.batches[-1].rows.rollouts.group_ids
        return np.array([f"{self.draw}/{groups[row]}" for row in rows])

    def compared(self, values: np.ndarray) -> tuple[Pairs, Pairs, np.ndarray]:
        """An estimate (B, S) beside the reference: of values, of their differences, and whether the trace was right."""
        rows, states = self.places
        prompts, truth = self.prompts(rows), self.reference.values
        value = Pairs(values[rows, states], truth[rows, states], prompts)
        before = Pairs(values[rows, states - 1], truth[rows, states - 1], prompts)
        delta = Pairs(value.estimate - before.estimate, value.reference - before.reference, prompts)
        return value, delta, self.outcomes[rows] > 0.5


Judge = Callable[[Sequence[Judged], Sequence[np.ndarray]], Mapping[str, Interval]]
"""All measures of one estimator's values (B, S) in every draw."""
