"""What credit by segment adds to one baseline per trace, and that to none, over all tasks: tables from gradient.py's results.

    python benchmarks/segments_add.py

Signal over variance, one baseline per trace = 1 (``snr_vs_trace``), for each task, and the geometric mean over them. Tasks are
independent; a task's standard error on the logarithmic scale is the width of its 95% interval / (2 · 1.96). `functions` is not
among them: its gradient has twelve times the noise of the others' (``grpo_noise_over_signal``), and no Monte-Carlo values.

The second table: with a budget of tokens for continuations (grads/spending.py), for each token: more rollouts, which lower
the variance as much as they cost, have 1 there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    "totals": "gradient_lm_totals",
}
CREDITS = {
    "no_baseline": "no baseline at all",
    "default_unscaled": "the default",
    "credit_weight_0.5": "`credit_weight: 0.5`",
    "later_monte_carlo_4_1": "c = 1, δ of 4 continuations",
    "later_true_1": "c = 1, true δ",
}
"""Names of ``gradient.py``, and of the page."""

SPENT, SPENT_ON = "gradient_later", ("habits", "own_sums", "chains")
BUDGETS = {"default_unscaled": "none", "spend_0.1": "10 %", "spend_0.3": "30 %"}


def row(committed: Committed, credit: str) -> list[str]:
    """A cell for each task, and the mean with its interval."""
    entries = [
        committed.record(name)["summary"][f"{task}/snr_vs_trace/{credit}"]  # type: ignore[index]
        for task, name in RESULTS.items()
    ]
    return [*(f"{entry['value']:.2f}" for entry in entries), geometric_mean(entries)]


def geometric_mean(entries: Sequence[Mapping[str, float]]) -> str:
    """Of tasks that know nothing of each other, with its 95% interval."""
    value, low, high = (np.log([entry[part] for entry in entries]) for part in ("value", "low", "high"))
    half = float(np.sqrt(((high - low) ** 2).sum())) / 2 / len(entries)
    mean = float(value.mean())
    return "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp([mean, mean - half, mean + half]))


def per_token(summary: dict[str, dict[str, float]], task: str, credit: str) -> str:
    """Signal over variance for each token of a step, those of its rollouts = 1."""
    entry = summary[f"{task}/snr_vs_trace/{credit}"]
    tokens = summary.get(f"{task}/tokens/{credit}", {"value": 1.0})["value"]
    return "{:.2f} [{:.2f}, {:.2f}]".format(*(entry[part] / tokens for part in ("value", "low", "high")))


def main() -> None:
    committed = Committed(Path(__file__).parent / "results")
    print(f"| credit | {' | '.join(f'`{task}`' for task in RESULTS)} | mean |")
    print("| --- " * (len(RESULTS) + 2) + "|")
    for credit, name in CREDITS.items():
        print(f"| {' | '.join([name, *row(committed, credit)])} |")
    print(f"\n| tokens of continuations | {' | '.join(f'`{task}`' for task in SPENT_ON)} |")
    print("| --- " * (len(SPENT_ON) + 1) + "|")
    summary = committed.record(SPENT)["summary"]  # type: ignore[index]
    for credit, name in BUDGETS.items():
        print(f"| {' | '.join([name, *(per_token(summary, task, credit) for task in SPENT_ON)])} |")


if __name__ == "__main__":
    main()
