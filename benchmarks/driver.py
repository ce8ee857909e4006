"""What a step costs the driver's process, with the work in it and with it shared between Ray actors.

    OMP_NUM_THREADS=1 python benchmarks/driver.py
    OMP_NUM_THREADS=1 python benchmarks/driver.py --quick

Traces read like mathematical reasoning, in groups of 8; default options; log-probs are random. They lie in a TransferQueue
of four storage processes on this machine. A step is what the integration does in the driver: rows read, segments and
probes planned, probes laid down, answers and signals read, credit computed. Seconds are CPU seconds of all threads of the
driver's process, those that Ray and TransferQueue spend there included; `workers=0` and `workers=2` alternate, with as many
proposals as there are and with one, whose difference is what a probe costs. The calibration window is full; a fit of values
and one of baselines see no more than a fixed number of states. What the actors themselves take is theirs: they are cores
that would idle. `read` is the time by the clock that one process takes for a token's row and signals (32 bytes).
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
import transfer_queue as tq
from omegaconf import OmegaConf
from plan_check import make_step
from record import Summary, with_interval, write_record
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from tqdm import tqdm

from rredcot_plugin.adapter.probe_plan import ProbePlan
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import BatchSummary
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batch import BatchSource
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.planning.driver import READ_BYTES
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import MASKED, Rollouts

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
        self,
        source: BatchSource,
        lengths: list[int],
        encoder: ProbeEncoder,
        table: TokenBytes,
        workers: int,
        proposals: int,
    ) -> None:
        self.config = RRedCoTConfig(credit_workers=workers, value_kwargs={"max_proposals": proposals})
        self.source, self.lengths = source, lengths
        self.credit_workers = CreditWorkers(self.config, table, encoder)
        self.calibrator = self.config.build_calibrator()
        self.seconds: dict[str, float] = {}
        for name in FITS:
            setattr(self.calibrator, name, functools.partial(self._clocked, "fit", getattr(self.calibrator, name)))
        self.probes = 0

    def __call__(self) -> dict[str, float]:
        """CPU seconds by phase; the fits are none of credit's."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        seen, plan = self._clocked("plan", lambda: self.credit_workers.plan(self.source, self.lengths))
        self._answer(plan)
        ids = seen.levels[-1].segment_ids
        rewards = torch.zeros(ids.shape)  # verl hands them over
        rewards[torch.arange(len(ids)), torch.tensor(self.lengths) - 1] = seen.outcomes
        self._clocked("credit", lambda: self._credit(seen, plan, rewards))
        self.probes = plan.size
        return {**self.seconds, "credit": self.seconds["credit"] - self.seconds["fit"]}

    def _answer(self, plan: ProbePlan) -> None:
        """What the engine does, in no phase's time."""
        generator = torch.Generator().manual_seed(0)
        answers = [-torch.rand(1 + len(places), generator=generator) for places in plan.places]
        put(self.source, {transfer_fields.LOG_PROBS: answers})

    def _credit(self, seen: BatchSummary, plan: ProbePlan, rewards: torch.Tensor) -> None:
        """What the runner does after the log-prob pass."""
        source, ids = self.source, seen.levels[-1].segment_ids
        found = tq.kv_batch_get(source.keys, source.partition_id, select_fields=[transfer_fields.LOG_PROBS])
        answers = [row[1:] for row in found[transfer_fields.LOG_PROBS].unbind()]
        numbers, rows = self.credit_workers.read_signals(), self.credit_workers.rows
        bare = Rollouts(None, ids != MASKED, rewards, self.credit_workers.group_ids)
        assign_credit(
            bare if rows is None else rows.rollouts, self.config, segments=seen.levels[-1], coarse=seen.levels[0], calibrator=self.calibrator,
            probed=plan.probed(answers, length_normalize=False),
            states=numbers,
        )  # fmt: skip

    def _clocked(self, phase: str, run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        begin = time.process_time()
        result = run(*args, **options)
        self.seconds[phase] += time.process_time() - begin
        return result


def lay_down(rows: PromptedRollouts) -> BatchSource:
    """The rows as verl lays them down, without texts. Half of the traces earn their reward."""
    rollouts, lengths = rows.rollouts, rows.lengths
    rewards = rollouts.rewards.clone()
    rewards[::2] = 0
    generator = torch.Generator().manual_seed(0)
    columns = {
        "responses": rollouts.token_ids,
        "response_mask": rollouts.response_mask.long(),
        "rm_scores": rewards,
        "rollout_log_probs": -torch.rand(rewards.shape, generator=generator),
        "old_log_probs": -torch.rand(rewards.shape, generator=generator),
        "entropy": torch.rand(rewards.shape, generator=generator),
    }
    source = BatchSource([f"{name}_{row}_0" for row, name in enumerate(rollouts.group_ids)], "train")
    fields = {name: [row[:n] for row, n in zip(column, lengths, strict=True)] for name, column in columns.items()}
    put(source, {"prompts": rows.prompts, **fields}, uid=[str(name) for name in rollouts.group_ids])
    return source


def put(source: BatchSource, fields: dict[str, list[torch.Tensor]], **columns: list[str]) -> None:
    """Jagged fields, and columns of other things."""
    found = {name: transfer_fields.jagged(rows) for name, rows in fields.items()}
    found |= {name: NonTensorStack(*column) for name, column in columns.items()}
    tq.kv_batch_put(source.keys, source.partition_id, fields=TensorDict(found, batch_size=len(source.keys)))


def clock_reading(source: BatchSource, lengths: list[int], repeats: int) -> list[float]:
    """Seconds of reading rows and signals, by the clock."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        source.rows()
        source.signals(max(lengths))
        found.append(time.perf_counter() - begin)
    return found


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
    ray.init(num_cpus=8, include_dashboard=False, logging_level=logging.ERROR)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 4}}}))
    source = lay_down(rows)
    cases = list(itertools.product(WORKERS, PROPOSALS))
    steps = {case: Step(source, rows.lengths, dataclasses.replace(encoder), table, *case) for case in cases}
    found: dict[tuple[int, int], list[dict[str, float]]] = {case: [] for case in cases}
    for repeat in tqdm(range(args.repeats + PRACTICE)):
        for case, step in steps.items():
            seconds = step()
            if repeat >= PRACTICE:
                found[case].append(seconds)
    reading = clock_reading(source, rows.lengths, args.repeats)
    tq.close()
    ray.shutdown()
    tokens, probes = sum(rows.lengths), {case: step.probes for case, step in steps.items()}
    summary = summarize(found, tokens, probes)
    summary["read_gigabytes_per_second"] = with_interval([READ_BYTES * tokens / 1e9 / s for s in reading])
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
