"""What a step costs the driver's process, with the work in it and with it shared between Ray actors.

    OMP_NUM_THREADS=1 python benchmarks/driver.py
    OMP_NUM_THREADS=1 python benchmarks/driver.py --quick

Traces read like mathematical reasoning, in groups of 8; default options; log-probs are random. A step is what the
integration does in the driver: segments and probes planned, their vectors packed, credit computed, all between two reads from
TransferQueue, which are left out. Seconds are CPU seconds of all threads of the driver's process, those that Ray spends there
on sending included, divided by response tokens; `workers=0` and `workers=2` alternate. The calibration window is full. What the
actors themselves take is theirs: they are cores that would idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch
from plan_check import make_step
from record import Summary, with_interval, write_record

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.integrations.verl.crew import Crew
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.rows import StepRows

OUTPUT = Path(__file__).parent / "results" / "driver.json"
WORKERS = (0, 2)
PHASES = ("plan", "pack", "credit")


class Step:
    """The driver's part of a step, again and again on the same rows."""

    def __init__(self, rows: StepRows, encoder: ProbeEncoder, table: TokenBytes, workers: int) -> None:
        self.config = RRedCoTConfig(credit_workers=workers)
        self.rows = rows
        self.crew = Crew(self.config, table, encoder)
        self.calibrator = self.config.build_calibrator()
        self.seconds: dict[str, float] = {}

    def __call__(self) -> dict[str, float]:
        """CPU seconds by phase."""
        levels, plan = self._clocked("plan", lambda: self.crew.plan(self.rows))
        self._clocked("pack", lambda: [wire.pack(specs) for specs in plan.specs])
        generator = torch.Generator().manual_seed(0)
        answers = [(-torch.rand(len(specs), generator=generator)).tolist() for specs in plan.specs]
        shape = self.rows.rollouts.token_ids.shape
        log_probs, entropies = (torch.rand(shape, generator=generator) for _ in range(2))
        rollouts = dataclasses.replace(self.rows.rollouts, log_probs=-log_probs, entropies=entropies)
        self._clocked("credit", lambda: assign_credit(
            rollouts, self.config, segments=levels[-1], coarse=levels[0], calibrator=self.calibrator,
            probed=plan.probed(answers, length_normalize=False), features=self.crew.features,
        ))  # fmt: skip
        self.probes = sum(map(len, plan.specs))
        return dict(self.seconds)

    def _clocked(self, name: str, run: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = run()
        self.seconds[name] = time.process_time() - begin
        return result


def bare(rows: StepRows) -> StepRows:
    """As the integration reads them: without texts. Half of the traces earn their reward."""
    rewards = rows.rollouts.rewards.clone()
    rewards[::2] = 0
    rollouts = dataclasses.replace(rows.rollouts, texts=None, token_offsets=None, rewards=rewards)
    return dataclasses.replace(rows, rollouts=rollouts, prompt_tails=[""] * len(rows.lengths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=256, help="rollouts of a step (default 256)")
    parser.add_argument("--tokens", type=int, default=8192, help="response tokens (default 8192)")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps (default 5)")
    parser.add_argument("--quick", action="store_true", help="a small step, nothing written")
    args = parser.parse_args()
    if args.quick:
        args.traces, args.tokens, args.repeats = 32, 512, 2
    torch.set_num_threads(1)
    rows, encoder, table = make_step(args.tokens, args.traces)
    rows = bare(rows)
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    steps = {workers: Step(rows, dataclasses.replace(encoder), table, workers) for workers in WORKERS}
    found: dict[int, list[dict[str, float]]] = {workers: [] for workers in WORKERS}
    for repeat in range(args.repeats + 5):  # actors start, caches and the window of four steps fill up
        for workers, step in steps.items():
            seconds = step()
            if repeat >= 5:
                found[workers].append(seconds)
    ray.shutdown()
    tokens = sum(rows.lengths)
    summary: Summary = {}
    for workers, repeats in found.items():
        for phase in PHASES:
            each = [seconds[phase] / tokens for seconds in repeats]
            summary[f"workers={workers}/{phase}_seconds_per_token"] = with_interval(each)
        total = [sum(seconds.values()) / tokens for seconds in repeats]
        summary[f"workers={workers}/seconds_per_token"] = with_interval(total)
        by_phase = ", ".join(f"{phase} {median(s[phase] for s in repeats):.2f}" for phase in PHASES)
        print(f"workers={workers}: {median(total) * 1e6:.3f} µs a response token ({by_phase} s)")
    if args.quick:
        return
    settings = {"traces": args.traces, "tokens": tokens, "probes": steps[0].probes, "repeats": args.repeats}
    write_record(OUTPUT, settings, summary, found, seeds=[0])


if __name__ == "__main__":
    main()
