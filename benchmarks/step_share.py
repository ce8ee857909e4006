"""The share of a training step that rredcot adds, read from the tensorboard events of a run.

    rredcot demo --out demo_output && python benchmarks/step_share.py demo_output/rredcot/tensorboard

Of each step: Σ timing_s/rredcot_* (building the probes, running them in the log-prob pass, computing credit) over
timing_s/step. On the CPU platform verl's replay buffer is polled every 0.2 s and not every 2 s, so the share is not
flattered by waiting; the first step, which compiles and allocates, and steps with validation are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from record import with_interval, write_record

from rredcot_plugin.report.curves import read_scalars

OUTPUT = Path(__file__).parent / "results" / "step_share.json"
PART, STEP = "timing_s/rredcot_", "timing_s/step"


def share_of(row: Mapping[str, float]) -> float:
    """What all parts of rredcot took of a step, from the metrics of that step."""
    return sum(value for name, value in row.items() if name.startswith(PART)) / row[STEP]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=Path, help="tensorboard folder of a run with rredcot")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    scalars = {name: dict(points) for name, points in read_scalars(args.events).items()}
    parts = sorted(name for name in scalars if name.startswith(PART))
    if not parts:
        parser.error(f"{args.events}: no {PART}* here; expected a run with adv_estimator=rredcot")
    validated = scalars.get("timing_s/testing", {})
    steps = [step for step in scalars[STEP] if step > 1 and step not in validated]
    seconds = {name: [scalars[name][step] for step in steps] for name in [*parts, STEP]}
    totals = seconds[STEP]
    rows = [dict(zip(seconds, row, strict=True)) for row in zip(*seconds.values(), strict=True)]
    shares = {name: [own / total for own, total in zip(seconds[name], totals, strict=True)] for name in parts}
    summary = {
        "step_share": with_interval([share_of(row) for row in rows]),
        **{f"{name.split('/')[1]}_share": with_interval(values) for name, values in shares.items()},
        "step_seconds": with_interval(totals),
    }
    write_record(args.output, {"steps": len(steps)}, summary, seconds)


if __name__ == "__main__":
    main()
