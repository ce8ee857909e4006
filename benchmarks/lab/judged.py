"""One family with what its estimates are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.estimators import Workbench
from lab.rollouts import Reference


@dataclass(frozen=True)
class Judged:
    """The places of one family at which estimates are compared; ``at`` are the judged rows."""

    bench: Workbench
    at: list[int]
    reference: Reference
    mistakes: dict[int, int]
    """Row -> segment of its first wrong line, for wrong rows with at least two segments."""

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and numbers of the states behind the prompt."""
        counts = self.bench.segments[-1].num_segments.tolist()
        found = [(row, k) for row in self.at for k in range(1, counts[row])]
        rows, states = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return rows, states

    @property
    def outcomes(self) -> np.ndarray:
        found: np.ndarray = self.bench.batches[-1].rows.rollouts.outcomes.numpy()
        return found
