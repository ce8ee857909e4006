"""Watch a run: read what verl's `file` logger wrote and say which numbers of rredcot are outside their healthy range.

    trainer.logger='["console","file"]'  VERL_FILE_LOGGER_PATH=run.jsonl
    python examples/04_monitoring.py run.jsonl

Without a file it makes three steps of random credit, to show what it prints. Ranges: docs/reference/metrics.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEALTHY = {
    "rredcot/segments/per_trace/mean": (3, 64, "the segmenter finds no boundaries, or far too many"),
    "rredcot/credit/answer_share/mean": (0.0, 0.9, "all credit falls on the answer: values are flat"),
    "rredcot/credit/return_error/max": (0.0, 1e-5, "rewards are not conserved: report this"),
    "rredcot/value/explained_variance/mean": (0.0, 1.0, "values predict worse than a constant"),
    "rredcot/value/ece/mean": (0.0, 0.1, "calibration is off: larger batches, or a longer calibrate_window"),
    "rredcot/fallback/no_proposal/mean": (0.0, 0.1, "many traces have no answer to propose"),
    "rredcot/fallback/nonfinite_reward/mean": (0.0, 0.0, "the reward function returns NaN or infinity"),
}


def example_steps() -> list[dict]:
    import torch

    import rredcot_plugin as rr
    from rredcot_plugin.testing import text_rollouts

    steps = []
    for step in range(3):
        torch.manual_seed(step)
        rollouts = text_rollouts(["a = 1\nb = 2\n#### 3"] * 8, torch.randint(0, 2, (8,)).tolist())
        credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="newline"), values=torch.rand(8, 3))
        steps.append({"step": step + 1, "data": credit.metrics})
    return steps


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    steps = [json.loads(line) for line in path.read_text().splitlines()] if path else example_steps()
    for entry in steps:
        found = {name: entry["data"][name] for name in HEALTHY if name in entry["data"]}
        bad = [name for name, value in found.items() if not HEALTHY[name][0] <= value <= HEALTHY[name][1]]
        print(f"step {entry['step']}: {len(found)} numbers looked at, {len(bad)} outside their range")
        for name in bad:
            low, high, meaning = HEALTHY[name]
            print(f"  {name} = {found[name]:.3g}, expected {low:g} to {high:g}: {meaning}")


if __name__ == "__main__":
    main()
