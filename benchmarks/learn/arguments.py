"""The options of ``learning.py``: what is to be run, and how and where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lab.devices import CPU, CUDA, FLOAT32, add_device, add_matmul
from lab.tasks import EXACT_LINES, FAMILIES

from learn.runs import Sizes
from learn.systems import DEFAULT_SYSTEMS, MORE_SYSTEMS, TRUE, System


def add_choices(parser: argparse.ArgumentParser, families: Sequence[str], batches: Sequence[str]) -> None:
    """Families, systems, seeds, rates and sizes. ``families`` are the default's; the first of ``batches`` is the default."""
    known = ", ".join(system.name for system in (*DEFAULT_SYSTEMS, *MORE_SYSTEMS))
    small, large, lm, lm_gpu = batches
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    add(
        "--families",
        nargs="+",
        choices=list(FAMILIES),
        metavar="NAME",
        help=f"of {', '.join(FAMILIES)} (default: {' '.join(families)})",
    )
    add(
        "--systems",
        nargs="*",
        metavar="NAME",
        help=f"of {known} (default: the first {len(DEFAULT_SYSTEMS)}); none for those of --system alone",
    )
    add(
        "--system",
        nargs="+",
        action="append",
        default=[],
        metavar="WORD",
        help="NAME KEY=VALUE …: one more, with options of algorithm.rredcot; may be given several times",
    )
    add("--seeds", nargs="+", type=int, default=list(range(10)), help="measured (default: 0 to 9)")
    add(
        "--tuning-seeds",
        nargs="*",
        type=int,
        help="for the choice of the rate (default: 9001, …); none for a single rate",
    )
    add(
        "--batch",
        choices=list(batches),
        help=f"rollouts per step: {small} (default), 16 in each of 120 steps, or {large}, 64 in each of 30, as verl is run, or "
        f"{lm}, 32 in each of 40, for the families of the real language model, or {lm_gpu}, the same on a GPU with finer validations",
    )
    add(
        "--rates",
        nargs="+",
        type=float,
        help="learning rates to choose from, no others (default: three or four, more where the best is at the edge)",
    )
    add("--steps", type=int, help="training steps of a run")
    add("--prompts", type=int, help="prompts of a step, in place of the batch's")
    add("--group", type=int, help="rollouts of a prompt")
    add("--eval-every", type=int, help="steps between two validations")
    add("--greedy", action="store_true", help="validate with the most probable tokens too")
    add("--clean-steps", type=int, default=Sizes.clean_steps, help="supervised steps of the model of own_sums, …")


def add_running(parser: argparse.ArgumentParser, cache: Path, models: Path) -> None:
    """Processes, time, folders and files; ``cache`` and ``models`` are the default folders."""
    add = parser.add_argument
    add_device(parser)
    add_matmul(parser)
    add("--jobs", type=int, default=1, help="processes, one thread each (default 1)")
    add("--budget", type=float, help="start no run after so many minutes")
    add("--retry-failed", action="store_true", help="repeat the runs that failed")
    add(
        "--merge",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="first take over runs of other caches, or of a learning.json",
    )
    add("--report", action="store_true", help="run nothing, report what is there")
    add(
        "--against-verl", action="store_true", help="compare with real verl runs (minutes each) at the demo's rate"
    )
    add("--verl-seeds", nargs="+", type=int, default=[0], help="seeds of the real runs (default 0)")
    add("--cache", type=Path, default=cache, help="folder of the runs")
    add("--models", type=Path, default=models, help="folder where the model of own_sums, … is kept")
    add("--output", type=Path, help="where the JSON and the PNG go")
    add("--page", type=Path, help="page whose part between the learning marks is replaced")


def check_together(args: argparse.Namespace, families: Sequence[str], systems: Sequence[System]) -> None:
    """Raises ValueError where a device, a precision, a family or a validation is not for what is asked beside it."""
    if not systems:
        raise ValueError("--systems: no name given, and no --system; name at least one way of giving credit")
    if args.device != CPU and (args.against_verl or any(system.needs_reward_model for system in systems)):
        part = "--against-verl" if args.against_verl else "the reward model of red"
        raise ValueError(
            f"--device {args.device}: {part} runs on the CPU alone; choose --systems without, or --device cpu"
        )
    if args.matmul != FLOAT32 and (args.device == CUDA or args.against_verl):
        raise ValueError(
            f"--matmul {args.matmul}: for --device cpu alone, and not for --against-verl; leave it out"
        )
    if args.greedy and args.against_verl:
        raise ValueError("--greedy: not for --against-verl, whose validations are verl's; leave it out")
    by_lines = [system.name for system in systems if system.by_lines]
    graded = [name for name, family in FAMILIES.items() if family.graded]
    if by_lines and not set(families) <= set(graded):
        raise ValueError(
            f"--systems {by_lines[0]}: lines earn nothing of their own in {', '.join(sorted(set(families) - set(graded)))}; "
            f"choose --families of {', '.join(graded)}"
        )
    for system in (system for system in systems if system.kind == TRUE):
        unknown = [family for family in families if family not in EXACT_LINES]
        if unknown:
            raise ValueError(
                f"--systems {system.name}: true values are not known of {', '.join(unknown)}; choose --families of "
                f"{', '.join(EXACT_LINES)}"
            )
