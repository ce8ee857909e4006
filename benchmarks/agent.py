"""Does credit per turn train an agent faster? The tiny tool user of recipes/agent by real verl, GRPO and turn credit side by side.

    OMP_NUM_THREADS=1 python benchmarks/agent.py
    OMP_NUM_THREADS=1 python benchmarks/agent.py --seeds 0 1 --budget 20
    OMP_NUM_THREADS=1 python benchmarks/agent.py --report

A run is one system and seed: the recipe's own script from the same warmed-up model, the same questions in another order and
other samples for each seed, with equal steps and learning rate. Seeds are paired. Runs are kept in the result file, so that
a plan that was stopped goes on; --report writes the summary of those that are there.

    <system>/reward_last_quarter         mean reward of the last quarter of the steps, over seeds
    <system>/reward_all                  the same over all steps
    difference/<system>/reward_all       minus GRPO's of the same seed
    difference/turn-trace/reward_all     what the turns add to one baseline per trace, the same way
    <system>/step_share                  of a step, its first ones not counted: the time of everything that rredcot does

Values are medians over seeds with bootstrap intervals. Equal learning rates favour neither on purpose, but nothing was tuned.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from cells import Cell, fill_cells, load_cells
from record import Summary, describe_machine, git_head, with_interval, write_record
from step_share import share_of

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes/agent"
OUTPUT = Path(__file__).parent / "results" / "agent.json"
WORK = ROOT / "outputs/agent"


@dataclass(frozen=True)
class System:
    """Environment variables of the recipe's script, and the overrides that it is given."""

    knobs: dict[str, str]
    overrides: tuple[str, ...] = ()


BASE, TRACE, TURN = "grpo", "trace", "turn"
SYSTEMS = {
    BASE: System({"ADV_ESTIMATOR": "grpo"}),
    TRACE: System({"ADV_ESTIMATOR": "rredcot", "SEGMENTER": "turn"}, ("+algorithm.rredcot.baseline=trace",)),
    TURN: System({"ADV_ESTIMATOR": "rredcot", "SEGMENTER": "turn"}),
}
"""With one baseline per trace all turns of a trace have the same advantage."""
UNUSUAL_STEPS = 2
"""Steps at the start that allocate and compile, and fit nothing."""
REQUIRED = ("rewards", "turns", "wall_seconds", "commit")
RUN_SECONDS = 3600


def cell_name(system: str, seed: int, steps: int) -> str:
    """Under which a run is kept: a system whose options have changed since shares none with what it was."""
    return f"{system} {json.dumps(asdict(SYSTEMS[system]), sort_keys=True)} seed {seed} steps {steps}"


def perform(system: str, seed: int, steps: int, work: Path) -> Cell:
    """One run of the recipe's script; the mean reward and the mean number of messages of each step.

    Raises:
        RuntimeError: it ended with an error; names the log.
    """
    with tempfile.TemporaryDirectory(dir=work, prefix=f"{system}_{seed}_") as folder:
        metrics, log = Path(folder) / "metrics.jsonl", work / f"{system}_{seed}.log"
        environment = {
            **os.environ,
            **SYSTEMS[system].knobs,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "MODEL_PATH": str(work / "model"),
            "DATA_DIR": str(work / "data"),
            "OUT_DIR": folder,
            "SEED": str(seed),
            "TOTAL_STEPS": str(steps),
            "TEST_FREQ": "-1",
            "VERL_FILE_LOGGER_PATH": str(metrics),
        }
        overrides = [
            *SYSTEMS[system].overrides,
            'trainer.logger=["console","file"]',
            "trainer.val_before_train=False",
        ]
        started = time.monotonic()
        with log.open("w", encoding="utf-8") as said:
            command = ["bash", str(RECIPE / "run_tiny_tool_user_cpu.sh"), *overrides]
            done = subprocess.run(
                command, env=environment, stdout=said, stderr=subprocess.STDOUT, timeout=RUN_SECONDS, check=False
            )
        if done.returncode != 0:
            raise RuntimeError(f"{system}, seed {seed}: exit code {done.returncode}; log: {log}")
        rows = [json.loads(line)["data"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {
        "system": system,
        "seed": seed,
        "rewards": [row["critic/score/mean"] for row in rows],
        "turns": [row["num_turns/mean"] for row in rows],
        "shares": [share_of(row) for row in rows],
        "wall_seconds": time.monotonic() - started,
        "commit": git_head(),
        "cpu": describe_machine()["cpu"],
    }


def make_inputs(work: Path) -> None:
    """The model and the questions, once for all runs."""
    work.mkdir(parents=True, exist_ok=True)
    for made, arguments in (
        ("model/config.json", ["warm_up.py", "--out", str(work / "model")]),
        (
            "data/checksums.txt",
            [
                "prepare_data.py",
                "--source",
                "word-problems",
                "--out",
                str(work / "data"),
                "--val-size",
                "64",
                "--force",
            ],
        ),
    ):
        if not (work / made).exists():  # which is written last
            command = [sys.executable, str(RECIPE / arguments[0]), *arguments[1:]]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def summarize(cells: dict[str, Cell]) -> Summary:
    """Medians over seeds with their intervals, and paired differences to GRPO; only seeds that a system has."""
    rewards = {(cell["system"], cell["seed"]): cell["rewards"] for cell in cells.values()}
    summary: Summary = {}
    systems = list(dict.fromkeys(name for name, _ in rewards))
    for system in systems:
        own = [curve for (name, _), curve in rewards.items() if name == system]
        quarters = [mean(curve[-max(1, len(curve) // 4) :]) for curve in own]
        summary[f"{system}/reward_last_quarter"] = with_interval(quarters)
        summary[f"{system}/reward_all"] = with_interval([mean(curve) for curve in own])
        timed = [cell["shares"] for cell in cells.values() if cell["system"] == system and "shares" in cell]
        if system != BASE and timed:
            shares = [share for steps in timed for share in steps[UNUSUAL_STEPS:]]
            summary[f"{system}/step_share"] = with_interval(shares)
    for system, other in [*((system, BASE) for system in systems if system != BASE), (TURN, TRACE)]:
        seeds = [seed for name, seed in rewards if name == system and (other, seed) in rewards]
        if seeds:
            name = system if other == BASE else f"{system}-{other}"
            differences = [mean(rewards[system, seed]) - mean(rewards[other, seed]) for seed in seeds]
            summary[f"difference/{name}/reward_all"] = with_interval(differences)
    return summary


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), help="what to compare"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(8)), help="a run of each system each")
    parser.add_argument("--steps", type=int, default=30, help="training steps of a run")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="start no run after this time")
    parser.add_argument("--report", action="store_true", help="run nothing, summarize what is there")
    parser.add_argument("--work", type=Path, default=WORK, help="model, data and logs")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    wanted: dict[str, Callable[[], Cell]] = {
        cell_name(system, seed, args.steps): partial(perform, system, seed, args.steps, args.work)
        for seed in args.seeds
        for system in args.systems
    }
    stored = load_cells(args.output, REQUIRED)
    if args.report:
        cells = {key: cell for key, cell in stored.items() if key in wanted}
    else:
        make_inputs(args.work)
        end = None if args.budget is None else time.monotonic() + 60 * args.budget
        cells = fill_cells(args.output, wanted, REQUIRED, may_start=lambda: end is None or time.monotonic() < end)
    if not cells:
        parser.exit(message="no run is there yet: nothing to report\n")
    settings = {
        "steps": args.steps,
        "systems": {name: asdict(SYSTEMS[name]) for name in args.systems},
        "cpus": sorted({cell["cpu"] for cell in cells.values()}),
        "commits": sorted({str(cell["commit"]) for cell in cells.values()}),
        "wall_minutes": sum(cell["wall_seconds"] for cell in cells.values()) / 60,
    }
    seeds = sorted({cell["seed"] for cell in cells.values()})
    kept = stored | cells  # runs that were not asked for now took as long
    write_record(args.output, settings, summarize(cells), {"cells": kept}, seeds=seeds)


if __name__ == "__main__":
    main()
