"""What credit by segment adds to one baseline per trace, over all tasks: a table from the results of gradient.py.

    python benchmarks/segments_add.py

Signal over variance, one baseline per trace = 1 (``snr_vs_trace``), for each task, and the geometric mean over them. Tasks are
independent; a task's standard error on the logarithmic scale is the width of its 95% interval / (2 · 1.96).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from quick_checks.committed import Committed

RESULTS = {
    "sums": "gradient",
    "sorting": "gradient",
    "own_sums": "gradient_own_sums",
    "habits": "gradient_habits",
    "parts": "gradient_parts",
    "chains": "gradient_chains",
    "words": "gradient_lm",
}
CREDITS = {
    "default_unscaled": "the default",
    "credit_weight_0.5": "`credit_weight: 0.5`",
    "later_monte_carlo_4_1": "c = 1, δ of 4 continuations",
    "later_true_1": "c = 1, true δ",
}
"""Names of ``gradient.py``, and of the page."""


def row(committed: Committed, credit: str) -> list[str]:
    """A cell for each task, and the mean with its interval."""
    entries = [
        committed.record(name)["summary"][f"{task}/snr_vs_trace/{credit}"]  # type: ignore[index]
        for task, name in RESULTS.items()
    ]
    value, low, high = (np.log([entry[part] for entry in entries]) for part in ("value", "low", "high"))
    half = float(np.sqrt(((high - low) ** 2).sum())) / 2 / len(entries)
    mean = float(value.mean())
    numbers = "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp([mean, mean - half, mean + half]))
    return [*(f"{entry['value']:.2f}" for entry in entries), numbers]


def main() -> None:
    committed = Committed(Path(__file__).parent / "results")
    print(f"| credit | {' | '.join(f'`{task}`' for task in RESULTS)} | mean |")
    print("| --- " * (len(RESULTS) + 2) + "|")
    for credit, name in CREDITS.items():
        print(f"| {' | '.join([name, *row(committed, credit)])} |")


if __name__ == "__main__":
    main()
