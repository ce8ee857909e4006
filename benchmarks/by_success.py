"""Signal over variance on prompts of any success, as training has them, from gradient.py's results: a table of a page.

    python benchmarks/by_success.py

One baseline per trace = 1 (``snr_vs_trace``), for each task, and a geometric mean with its interval as in segments_add.py.
``RESULTS`` are those by rate of success, which page_figures.py draws.
"""

from __future__ import annotations

from pathlib import Path

from quick_checks.committed import Committed
from segments_add import geometric_mean

RESULTS = {
    "2 to 20 %": "gradient_hard",
    "20 to 80 %": "gradient_medium",
    "80 to 98 %": "gradient_easy",
    "any": "gradient_any",
}
"""Success of the prompts -> result."""

TASKS = dict.fromkeys(("sums", "sorting", "own_sums", "habits", "parts", "chains"), "gradient_any") | {
    "totals": "gradient_any_totals"
}
"""Task -> result, of any success."""

CREDITS = {
    "no_baseline": "no baseline at all",
    "default_unscaled": "the default",
    "low_floor_trace": "one baseline per trace, low floor",
    "low_variance": "… and `credit_weight: 0.5` (`preset=low_variance`)",
    "low_variance_confidence": "… without probes (`value_estimator=confidence`)",
}
"""Names of ``gradient.py``, and of the page."""


def main() -> None:
    committed = Committed(Path(__file__).parent / "results")
    print(f"| credit | {' | '.join(f'`{task}`' for task in TASKS)} | mean |")
    print("| --- " * (len(TASKS) + 2) + "|")
    for credit, name in CREDITS.items():
        own = [
            committed.record(result)["summary"][f"{task}/snr_vs_trace/{credit}"]  # type: ignore[index]
            for task, result in TASKS.items()
        ]
        cells = [name, *("{value:.2f}".format(**one) for one in own), geometric_mean(own)]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
