"""For which prompts does a baseline matter? A table of signal over variance by their rate of success, from gradient.py's results.

    python benchmarks/by_success.py

GRPO = 1 (``snr_vs_grpo``), a geometric mean over the tasks that have enough such prompts; its interval as in segments_add.py.
"""

from __future__ import annotations

from pathlib import Path

from quick_checks.committed import Committed
from segments_add import geometric_mean

RESULTS = {
    "2 to 20 %": ("gradient_hard", ("habits", "own_sums", "chains")),
    "20 to 80 %": ("gradient_medium", ("habits", "own_sums", "chains")),
    "80 to 98 %": ("gradient_easy", ("habits", "own_sums")),
    "any": ("gradient_any", ("habits", "own_sums", "chains")),
}
"""Success -> result and its tasks; no prompt of ``chains`` is easy."""

CREDITS = {
    "leave_one_out": "RLOO",
    "no_baseline": "no baseline",
    "default": "the default",
    "default_unscaled": "… with `scale: none`",
    "norm_weighted_mean": "one baseline per trace",
    "low_floor": "the default, low floor",
    "low_floor_trace": "one baseline per trace, low floor",
    "low_floor_credit_weight_0.5": "the default, low floor, `credit_weight: 0.5`",
}
"""Names of ``gradient.py``, and of the page."""


def cell(committed: Committed, result: str, tasks: tuple[str, ...], credit: str) -> str:
    summary = committed.record(result)["summary"]  # type: ignore[index]
    return geometric_mean([summary[f"{task}/snr_vs_grpo/{credit}"] for task in tasks])


def main() -> None:
    committed = Committed(Path(__file__).parent / "results")
    print(f"| success of prompts | {' | '.join(RESULTS)} |")
    print("| --- " * (len(RESULTS) + 1) + "|")
    for credit, name in CREDITS.items():
        cells = [cell(committed, result, tasks, credit) for result, tasks in RESULTS.values()]
        print(f"| {' | '.join([name, *cells])} |")


if __name__ == "__main__":
    main()
