"""Is a number large for what came before it? A quantile of the prefix, kept up to date in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST, GROWTH = 16, 1.5


def running_quantile(signal: NDArray[np.float64], quantile: float) -> NDArray[np.float64]:
    """For each entry the ``quantile`` of the entries before it, or of most of them; infinite for the first 16.

    The quantile is taken anew when the prefix has grown by half: at 16, 24, 36, … entries, so all of them together cost
    three times the length of the signal. Of m numbers it is the ⌊q·(m − 1)⌋-th smallest, counted from 0.
    """
    level = np.full(len(signal), np.inf)
    size = FIRST
    while size < len(signal):
        following = max(size + 1, int(size * GROWTH))
        rank = int(quantile * (size - 1))
        level[size:following] = np.partition(signal[:size], rank)[rank]
        size = following
    return level
