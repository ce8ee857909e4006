"""What probes cost on CPU, in time and memory, over trace lengths T, probes K, probe tokens A and backends.

Each cell times, in turns within one process, the plain log-prob pass of a trace and the same with K probes of A
tokens; ratios are taken within a round. Beside every ratio stands the floor (T + K*A) / T: the cost if a probe
token cost what a trace token costs. Summary (median, bootstrap 95% interval):

    probe_overhead_vs_floor  cached over plain, over the floor, at T=4096 K=64 A=12 (target: at most 1.10)
    step_share               share of a training step, read from results/step_share.json (target: at most 0.10)
    exponent_tokens          e in seconds ~ T^e of trace and probes with `cached`, K and A fixed
    exponent_group           e in seconds ~ G^e for a group of G traces with 4 boundaries and min(G, 8) proposals
    exponent_memory          e in peak memory growth ~ T^e, each from a fresh process; interval: neighbouring pairs

`*_plain` is the same of the plain pass. Every cell is written as soon as it is done, and a second call goes on
with those that are missing.

    OMP_WAIT_POLICY=passive python benchmarks/overhead.py --page docs/evidence/overhead.md
    python benchmarks/overhead.py --quick
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from cells import Cell, fill_cells
from overhead_tables import draw_picture, fill_page, make_tables, read_step_share, summarize
from probe_passes import SEED, VOCAB_SIZE, ProbeSizes, build_model, make_passes, peak_growth, rotated, time_round
from record import git_head, write_record

RESULTS = Path(__file__).parent / "results"
REQUIRED = ("kind", "tokens", "probes", "probe_tokens", "traces", "floor")
MAX_PROPOSALS = 8
"""The default of `value_kwargs.max_proposals`."""


@dataclass(frozen=True)
class Plan:
    """What is measured; `main` is (T, K, A) of the headline, with more rounds than the rest."""

    tokens: tuple[int, ...]
    probes: tuple[int, ...]
    probe_tokens: tuple[int, ...]
    main: tuple[int, int, int]
    rounds: int
    main_rounds: int
    batched_up_to: int
    groups: tuple[int, ...]
    group_tokens: int
    group_boundaries: int


FULL = Plan((512, 1024, 2048, 4096), (16, 64), (4, 12, 32), (4096, 64, 12), 3, 9, 512, (2, 4, 8, 16), 256, 4)
QUICK = Plan((64, 128), (2, 4), (3,), (128, 4, 3), 2, 3, 64, (2, 4), 32, 2)


def wanted_cells(plan: Plan, threads: int) -> dict[str, Callable[[], Cell]]:
    """Every cell of the plan by its name, as a function that measures it."""
    cells: dict[str, Callable[[], Cell]] = {}
    for tokens, probes, probe_tokens in itertools.product(plan.tokens, plan.probes, plan.probe_tokens):
        sizes = ProbeSizes(tokens, probes, probe_tokens)
        rounds = plan.main_rounds if (tokens, probes, probe_tokens) == plan.main else plan.rounds
        batched = tokens <= plan.batched_up_to and probe_tokens == plan.main[2]
        cells[f"time {label(sizes)}, {rounds} rounds, {threads} threads"] = partial(
            time_cell, sizes, ["plain", "cached", "packed"], rounds, batched
        )
    for group in plan.groups:
        probes = plan.group_boundaries * min(group, MAX_PROPOSALS)
        sizes = ProbeSizes(plan.group_tokens, probes, plan.main[2], traces=group)
        cells[f"group {label(sizes)}, {plan.rounds} rounds, {threads} threads"] = partial(
            time_cell, sizes, ["plain", "cached"], plan.rounds, False
        )
    for tokens in plan.tokens:
        sizes = ProbeSizes(tokens, *plan.main[1:])
        cells[f"memory {label(sizes)}, {threads} threads"] = partial(memory_cell, sizes, threads)
    return cells


def label(sizes: ProbeSizes) -> str:
    return f"T={sizes.tokens} K={sizes.probes} A={sizes.probe_tokens} traces={sizes.traces}"


@cache
def shared_model() -> torch.nn.Module:
    return build_model()


@torch.no_grad()
def time_cell(sizes: ProbeSizes, names: list[str], rounds: int, batched: bool) -> Cell:
    """Seconds of every round by clock and pass; `batched` runs in the first round only."""
    passes = make_passes(sizes, shared_model())
    expected = passes["cached"]()
    assert expected is not None
    found = [
        time_round(passes, rotated(names, i) + (["batched"] if batched and i == 0 else []), expected)
        for i in range(rounds)
    ]
    seconds = {
        clock: {name: [row[name][clock] for row in found if name in row] for name in found[0]}
        for clock in ("wall", "cpu")
    }
    return describe("group" if sizes.traces > 1 else "time", sizes) | {"seconds": seconds}


def memory_cell(sizes: ProbeSizes, threads: int) -> Cell:
    """Peak growth of the resident memory in MiB by pass, each in a fresh process."""
    numbers = [str(n) for n in (sizes.tokens, sizes.probes, sizes.probe_tokens)]
    mib = {}
    for name in ("plain", "cached", "packed"):
        command = [sys.executable, __file__, "--threads", str(threads), "--memory-worker", name, *numbers]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        mib[name] = float(done.stdout.split()[-1])
    return describe("memory", sizes) | {"mib": mib}


def describe(kind: str, sizes: ProbeSizes) -> dict[str, Any]:
    return {
        "kind": kind,
        "tokens": sizes.tokens,
        "probes": sizes.probes,
        "probe_tokens": sizes.probe_tokens,
        "traces": sizes.traces,
        "floor": sizes.floor,
        "commit": git_head(),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to try the script; writes to --output only"
    )
    parser.add_argument("--force", action="store_true", help="measure every cell again")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--output", type=Path, help="where the JSON and, with the suffix .png, the picture go")
    parser.add_argument("--page", type=Path, help="page whose part between the overhead marks is replaced")
    parser.add_argument("--step-share", type=Path, default=RESULTS / "step_share.json", help="result to quote")
    parser.add_argument("--memory-worker", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    if args.memory_worker:
        name, *numbers = args.memory_worker
        print(peak_growth(ProbeSizes(*map(int, numbers)), name))
        return
    share, share_from = read_step_share(args.step_share)
    plan = QUICK if args.quick else FULL
    output = args.output or (None if args.quick else RESULTS / "overhead.json")
    cells = fill_cells(output, wanted_cells(plan, args.threads), REQUIRED, force=args.force)
    tables = make_tables(list(cells.values()))
    print(tables)
    summary = {"step_share": share, **summarize(list(cells.values()), plan.main)}
    settings = {
        "main": plan.main, "quick": args.quick, "vocab_size": VOCAB_SIZE, "threads": args.threads,
        "model_parameters": sum(p.numel() for p in shared_model().parameters()), "step_share_from": share_from,
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
    }  # fmt: skip
    write_record(output or Path(os.devnull), settings, summary, {"cells": cells}, seeds=[SEED])
    picture = (
        args.page.parent.parent / "images" / "overhead.png" if args.page else output and output.with_suffix(".png")
    )
    if picture:
        draw_picture(list(cells.values()), plan.main, picture)
    if args.page:
        fill_page(args.page, tables)


if __name__ == "__main__":
    main()
