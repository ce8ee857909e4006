"""The share of a training step that rredcot adds in OpenRLHF, from a run of the tiny reasoner.

    .venv-openrlhf/bin/python benchmarks/openrlhf_step.py

Trains 16 steps of 8 × 8 rollouts (three minutes) and reads OpenRLHF's log. Of each step: Σ timing_s/rredcot_* (planning,
probes beside the log-prob pass, credit) over timing/step_total. The first step, which compiles and allocates, is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from record import with_interval, write_record

from rredcot_plugin.tiny.openrlhf import command, environment, steps_of

OUTPUT = Path(__file__).parent / "results" / "openrlhf_step.json"
PROMPTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16, help="training steps, the first of which is left out")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    if args.steps < 3:
        parser.error(f"--steps {args.steps}: expected 3 or more")
    with tempfile.TemporaryDirectory(prefix="rredcot_openrlhf_") as folder:
        log = trained(Path(folder), args.steps)
    steps = [metrics for number, metrics in sorted(steps_of(log).items()) if number > 1]
    parts = sorted(name for name in steps[0] if name.startswith("timing_s/rredcot_"))
    seconds = {name: [step[name] for step in steps] for name in [*parts, "timing/step_total"]}
    totals = seconds["timing/step_total"]
    shares = {name: [own / total for own, total in zip(seconds[name], totals, strict=True)] for name in parts}
    summary = {
        "step_share": with_interval([sum(row) for row in zip(*shares.values(), strict=True)]),
        **{f"{name.split('/')[1]}_share": with_interval(values) for name, values in shares.items()},
        "step_seconds": with_interval(totals),
    }
    write_record(args.output, {"steps": len(steps), "prompts": PROMPTS, "rollouts": 8}, summary, seconds)


def trained(folder: Path, steps: int) -> str:
    """The log of a run."""
    words = ["--algo.advantage.estimator", "rredcot", "--data.max_samples", f"{PROMPTS * steps}"]
    done = subprocess.run(
        command(folder, *words), env=environment(), cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr)[-4000:])
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
