"""What a step costs the driver's process, with the work in it and with it shared between Ray actors.

    OMP_NUM_THREADS=1 python benchmarks/driver.py
    OMP_NUM_THREADS=1 python benchmarks/driver.py --quick

Traces read like mathematical reasoning, in groups of 8; default options; log-probs are random. A step is what the
integration does in the driver: segments and probes planned, credit computed, all between two reads from
TransferQueue, which are left out. Seconds are CPU seconds of all threads of the driver's process, those that Ray spends there
on sending included; `workers=0` and `workers=2` alternate, with as many proposals as there are and with one, whose
difference is what a probe costs. The calibration window is full; a fit of values and one of baselines see no more than a fixed
number of states. What the actors themselves take is theirs: they are cores that would idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
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
from tqdm import tqdm

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl.crew import Crew
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.rows import StepRows

OUTPUT = Path(__file__).parent / "results" / "driver.json"
WORKERS = (0, 2)
PROPOSALS = (8, 1)
PHASES = ("plan", "credit", "fit")
FITS = ("baselines", "calibrate")
"""What the calibrator fits in a step of the default: baselines of least variance, and values."""

PRACTICE = 5
"""Steps that are not counted: actors start, caches and the window of four steps fill up."""


class Step:
    """The driver's part of a step, again and again on the same rows."""

    def __init__(
        self, rows: StepRows, encoder: ProbeEncoder, table: TokenBytes, workers: int, proposals: int
    ) -> None:
        self.config = RRedCoTConfig(credit_workers=workers, value_kwargs={"max_proposals": proposals})
        self.rows = rows
        self.crew = Crew(self.config, table, encoder)
        self.calibrator = self.config.build_calibrator()
        self.seconds: dict[str, float] = {}
        for name in FITS:
            setattr(self.calibrator, name, functools.partial(self._clocked, "fit", getattr(self.calibrator, name)))
        self.probes = 0

    def __call__(self) -> dict[str, float]:
        """CPU seconds by phase; the fits are none of credit's."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        levels, plan = self._clocked("plan", lambda: self.crew.plan(self.rows))
        generator = torch.Generator().manual_seed(0)
        answers = [-torch.rand(len(places), generator=generator) for places in plan.places]
        shape = self.rows.rollouts.token_ids.shape
        log_probs, entropies = (torch.rand(shape, generator=generator) for _ in range(2))
        rollouts = dataclasses.replace(self.rows.rollouts, log_probs=-log_probs, entropies=entropies)
        self._clocked("credit", lambda: assign_credit(
            rollouts, self.config, segments=levels[-1], coarse=levels[0], calibrator=self.calibrator,
            probed=plan.probed(answers, length_normalize=False), features=self.crew.features,
        ))  # fmt: skip
        self.probes = plan.size
        return {**self.seconds, "credit": self.seconds["credit"] - self.seconds["fit"]}

    def _clocked(self, phase: str, run: Callable[..., Any], *args: Any) -> Any:
        begin = time.process_time()
        result = run(*args)
        self.seconds[phase] += time.process_time() - begin
        return result


def bare(rows: StepRows) -> StepRows:
    """As the integration reads them: without texts. Half of the traces earn their reward."""
    rewards = rows.rollouts.rewards.clone()
    rewards[::2] = 0
    rollouts = dataclasses.replace(rows.rollouts, texts=None, token_offsets=None, rewards=rewards)
    return dataclasses.replace(rows, rollouts=rollouts, prompt_tails=[""] * len(rows.lengths))


def main() -> None:
    """Measure, summarise, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1024, help="rollouts of a step (default 1024)")
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
    cases = list(itertools.product(WORKERS, PROPOSALS))
    steps = {case: Step(rows, dataclasses.replace(encoder), table, *case) for case in cases}
    found: dict[tuple[int, int], list[dict[str, float]]] = {case: [] for case in cases}
    for repeat in tqdm(range(args.repeats + PRACTICE)):
        for case, step in steps.items():
            seconds = step()
            if repeat >= PRACTICE:
                found[case].append(seconds)
    ray.shutdown()
    tokens, probes = sum(rows.lengths), {case: step.probes for case, step in steps.items()}
    summary = summarize(found, tokens, probes)
    settings = {"traces": args.traces, "tokens": tokens, "repeats": args.repeats}
    raw = [
        {"workers": case[0], "max_proposals": case[1], "probes": probes[case], "seconds": found[case]}
        for case in cases
    ]
    if args.quick:
        print("--quick: a small step, none of its numbers says anything")
        return
    write_record(OUTPUT, settings, summary, raw, seeds=[0])


def summarize(
    found: dict[tuple[int, int], list[dict[str, float]]], tokens: int, probes: dict[tuple[int, int], int]
) -> Summary:
    """Microseconds a response token (without probes) and a probe, seconds of both fits, by number of workers."""
    many, one = PROPOSALS
    summary: Summary = {}
    for workers in WORKERS:
        with_many, with_one = found[workers, many], found[workers, one]
        added = probes[workers, many] - probes[workers, one]
        a_probe = [(_work(a) - _work(b)) / added for a, b in zip(with_many, with_one, strict=True)]
        typical = median(a_probe)
        a_token = [(_work(step) - typical * probes[workers, one]) / tokens for step in with_one]
        name = f"workers_{workers}"
        summary[f"{name}_microseconds_per_token"] = with_interval([1e6 * seconds for seconds in a_token])
        summary[f"{name}_microseconds_per_probe"] = with_interval([1e6 * seconds for seconds in a_probe])
        summary[f"{name}_fit_seconds"] = with_interval([step["fit"] for step in with_many])
    return summary


def _work(seconds: dict[str, float]) -> float:
    return sum(seconds[phase] for phase in PHASES if phase != "fit")


if __name__ == "__main__":
    main()
