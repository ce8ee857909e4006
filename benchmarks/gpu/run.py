"""What probes cost on top of the log-prob pass of a trace on one large GPU, in bfloat16.

Random models of the shapes of Qwen3-0.6B and Qwen3-4B. Needs torch, transformers and this repository (installed or
not), not verl. In each cell the plain log-prob pass and the passes with probes take turns, between CUDA events,
after warm-up; ratios are taken within a round, then the median and a bootstrap 95% interval over rounds. Passes:

    cached       the trace's pass, then one model call for all probes against its keys and values
    cached@96    the same with 96 probe tokens an attention call instead of 1024, as on a CPU
    packed       trace and probes in one model call
    flex         the same packing with FlexAttention

Beside each ratio stands the floor (T + K*A) / T. Target: at most 1.08 times the plain pass at T=16384, K=64, A=16.
First of all the probes' log-probs are compared with independent float32 forwards; if they differ, exit code 1.
Every cell is written as soon as it is done, and a second call goes on with those that are missing. No new cell is
begun after --minutes.

    python benchmarks/gpu/run.py
    python benchmarks/gpu/run.py --device cpu --tiny
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from cells import Cell, fill_cells
from record import git_head

from gpu.correctness import check_backends
from gpu.passes import SEED, SHAPES, build_model, draw_work, make_passes
from gpu.tables import headline, make_table, write_results
from gpu.timing import measure_passes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "gpu.json"
PROBED = ["cached", "cached@96", "packed", "flex"]
REQUIRED = ("kind", "shape", "tokens")
FULL = {"shapes": ("qwen3-0.6b", "qwen3-4b"), "tokens": (16384, 4096, 32768), "probes": (64, 16, 128)}
TINY = {"shapes": ("tiny",), "tokens": (256, 128), "probes": (4, 2)}
PROBE_TOKENS = 16
CHECKED_TOKENS = 4096
"""Length of the trace of the correctness check; its 13 probes stand after 1, 2, 4, ..., 4096 tokens."""


def wanted_cells(args: argparse.Namespace, device: torch.device) -> dict[str, Callable[[], Cell]]:
    """Every cell by name, as a function that measures it: the checks, the headline size of every model, the others."""
    plan = TINY if args.tiny else FULL
    shapes = [shape for shape in plan["shapes"] if not args.shapes or shape in args.shapes]
    checked = 128 if args.tiny else CHECKED_TOKENS
    cells: dict[str, Callable[[], Cell]] = {
        f"check {shape} T={checked} A={PROBE_TOKENS} of {','.join(args.passes)}": partial(
            check_cell, shape, checked, device, args.passes
        )
        for shape in shapes
    }
    sizes = sorted(itertools.product(plan["tokens"], plan["probes"]), key=lambda size: size != first_size(plan))
    for (tokens, probes), shape in itertools.product(sizes, shapes):
        name = (
            f"time {shape} T={tokens} K={probes} A={PROBE_TOKENS}, {args.rounds} rounds of {','.join(args.passes)}"
        )
        cells[name] = partial(time_cell, shape, tokens, probes, device, args.passes, args.rounds)
    return cells


def first_size(plan: dict[str, Any]) -> tuple[int, int]:
    return plan["tokens"][0], plan["probes"][0]


def check_cell(shape: str, tokens: int, device: torch.device, passes: list[str]) -> Cell:
    found = check_backends(SHAPES[shape], device, passes, tokens, PROBE_TOKENS)
    return {"kind": "check", "shape": shape, "tokens": tokens, "commit": git_head(), **found}


@torch.no_grad()
def time_cell(shape: str, tokens: int, probes: int, device: torch.device, passes: list[str], rounds: int) -> Cell:
    model = shared_model(shape, device)
    work = draw_work(SHAPES[shape].vocab, tokens, probes, PROBE_TOKENS, device)
    found = measure_passes(make_passes(model, work, ["plain", *passes]), rounds, device)
    for name, reason in found["failed"].items():
        print(f"    {name} failed: {reason}", flush=True)
    return describe("time", shape, tokens, probes) | found


@lru_cache(maxsize=len(FULL["shapes"]))
def shared_model(shape: str, device: torch.device) -> torch.nn.Module:
    return build_model(SHAPES[shape], device)


def describe(kind: str, shape: str, tokens: int, probes: int) -> dict[str, Any]:
    floor = (tokens + probes * PROBE_TOKENS) / tokens
    sizes = {"tokens": tokens, "probes": probes, "probe_tokens": PROBE_TOKENS, "floor": floor}
    return {"kind": kind, "shape": shape, **sizes, "commit": git_head()}


def describe_machine(device: torch.device) -> dict[str, Any]:
    gpu: dict[str, Any] = {"device": "cpu"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu = {"device": properties.name, "gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {**gpu, "cpus": os.cpu_count(), **versions, "python": platform.python_version()}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N, or cpu with --tiny")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and short traces; written to --output only"
    )
    parser.add_argument("--shapes", nargs="+", choices=FULL["shapes"], help="only these models")
    parser.add_argument(
        "--passes", nargs="+", default=PROBED, help=f"passes with probes (default {' '.join(PROBED)})"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each cell (default 7)")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no cell after this time (default 8)")
    parser.add_argument("--force", action="store_true", help="measure every cell again")
    parser.add_argument("--output", type=Path, help="where the JSON goes (default benchmarks/results/gpu.json)")
    args = parser.parse_args()
    if torch.device(args.device).type == "cpu" and not args.tiny:
        parser.error("--device cpu is for trying the script: add --tiny")
    unknown = [name for name in args.passes if name.partition("@")[0] not in ("cached", "packed", "flex")]
    if unknown:
        parser.error(f"--passes has {unknown}; expected cached, packed, either with @N, and flex")
    return args


def main() -> int:
    args = parse_arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            f"no CUDA device: torch {torch.__version__} sees none. Run this with a CUDA build of torch on a "
            "machine with a GPU, or try the script with --device cpu --tiny",
            file=sys.stderr,
        )
        return 1
    output = args.output or (None if args.tiny else OUTPUT)
    end = time.monotonic() + 60 * args.minutes
    cells = fill_cells(
        output, wanted_cells(args, device), REQUIRED, force=args.force, may_start=lambda: time.monotonic() < end
    )
    print(make_table(cells, args.passes))
    print(headline(cells, args.passes))
    if output is not None:
        settings = {"seeds": [SEED], "rounds": args.rounds, "passes": args.passes, "tiny": args.tiny}
        write_results(output, describe_machine(device), settings, cells, git_head())
    wrong = [f"{key}: {line}" for key, cell in cells.items() for line in cell.get("wrong", [])]
    for line in wrong:
        print(f"wrong log-probs, {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
