"""Runs a plan, some at a time; a finished run is on the disk before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from lab.devices import processor, use_matmul
from record import describe_machine, git_head
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils.logging import disable_progress_bar

from learn.runs import DONE, FAILED, Record, Run, load, load_all, save
from learn.schedule import Plan


class SameProcess(Executor):
    """Runs what is submitted at once, here."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **options))
        return done


def perform(run: Run, folder: Path, models: Path) -> Record:
    """One run to its end, and its record into the folder. What breaks a run is its result: ``failed``, with a reason.

    Raises:
        torch.OutOfMemoryError: a GPU whose memory does not hold the run; it stays to be run.
    """
    from learn.trainer import LeanTrainer  # verl takes seconds to import: not for tables and help

    torch.set_num_threads(1)
    disable_progress_bar()
    use_matmul(run.device, run.matmul)  # the rounding is far below the noise of a step
    begin = time.monotonic()
    try:
        record: Record = {"status": DONE, **LeanTrainer(run, models).fit()}
    except torch.OutOfMemoryError:
        raise  # no result of the run, but of how many share a card
    except (ArithmeticError, RuntimeError, ValueError) as error:
        record = {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    record |= {
        "commit": git_head(),
        "cpu": processor(run.device, describe_machine()["cpu"]),
        "wall_seconds": time.monotonic() - begin,
    }
    save(folder, run, record)
    return record


def known_records(plan: Plan, folder: Path) -> dict[Run, Record]:
    """What the folder has of a plan, failed runs too."""
    records: dict[Run, Record] = {}
    asked: set[Run] = set()
    while wanted := [run for run in plan.tuning(records) if run not in asked]:
        asked.update(wanted)
        records |= load_all(folder, wanted)
    return records | load_all(folder, plan.measured(plan.tuned(records)))


def execute(
    plan: Plan, folder: Path, models: Path, jobs: int, may_start: Callable[[], bool], retry_failed: bool = False
) -> dict[Run, Record]:
    """Run what is missing, ``jobs`` at a time, while ``may_start`` allows; returns all records of the plan.

    A run that another process has stored in the meantime is not repeated; failed ones are if ``retry_failed``.
    """
    known = known_records(plan, folder)
    repeat = {run for run, record in known.items() if retry_failed and record["status"] == FAILED}
    records = {run: record for run, record in known.items() if run not in repeat}
    running: dict[Future[Record], Run] = {}
    with _pool(jobs) as pool, _progress(plan.size(records)) as bar:
        task = bar.add_task("runs", total=plan.size(records), completed=len(records))
        while True:
            for run in plan.todo(records):
                if len(running) == jobs or not may_start():
                    break
                if run in running.values():
                    continue
                stored = None if run in repeat else load(folder, run)
                if stored is not None:
                    records[run] = stored
                    break
                bar.update(task, description=run.name)
                running[pool.submit(perform, run, folder, models)] = run
            if not running:
                if may_start() and plan.todo(records):
                    continue
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                records[run] = future.result()
                bar.update(task, completed=len(records), total=plan.size(records))
                bar.console.print(_line(run, records, plan, jobs), highlight=False, markup=False, soft_wrap=True)
    size = plan.size(records)
    left = size - len(records)
    if left:
        print(f"{left} of {size} runs are left: run the same command again to go on")
    return records


def _pool(jobs: int) -> Executor:
    # spawn: a forked process would inherit torch's threads
    return SameProcess() if jobs == 1 else ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def _progress(total: int) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True
    )


def _line(run: Run, records: dict[Run, Record], plan: Plan, jobs: int) -> str:
    """What came out of a run, and how long the rest may take."""
    record = records[run]
    mean = sum(r["wall_seconds"] for r in records.values()) / len(records)
    size = plan.size(records)
    hours = mean * (size - len(records)) / jobs / 3600
    head = f"[{len(records)}/{size}] {run.name}: "
    if record["status"] == FAILED:
        return f"{head}FAILED, {record['reason']}"
    accuracy = record["evals"]["accuracy"]
    took = f"{record['wall_seconds']:.0f} s, about {hours:.1f} h left"
    return f"{head}accuracy {accuracy[0]:.2f} -> {accuracy[-1]:.2f}, {took}"
