"""The stand-ins that a recipe's script meets instead of Python, Ray and SLURM: `python stand_in.py NAME ARGS...`.

Whatever starts a trainer is written down and not run; other Python programs (a data preparation, say) run.
Nothing is imported but the standard library, because scripts call Python often.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

OPENRLHF = "openrlhf.cli.train_ppo_ray"
OURS = "rredcot_plugin.integrations.openrlhf"
"""OpenRLHF's own program, and the one that installs us in it."""

LAUNCH_FILE = "RREDCOT_LAUNCH_FILE"
REAL_PYTHON = "RREDCOT_REAL_PYTHON"
OWN_VARIABLES = (LAUNCH_FILE, REAL_PYTHON)


def python(arguments: list[str]) -> None:
    """Write down the start of a trainer; run anything else."""
    module = arguments[1] if len(arguments) > 1 and arguments[0] == "-m" else ""
    if not module.startswith("verl.") and module not in (OPENRLHF, OURS):
        real = os.environ[REAL_PYTHON]
        os.execv(real, [real, *arguments])
    write_down(module, arguments[2:])


def rredcot(arguments: list[str]) -> None:
    """`rredcot openrlhf`; nothing else of it starts a trainer."""
    if arguments[:1] == ["openrlhf"]:
        write_down(OURS, arguments[1:])


def write_down(module: str, arguments: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    launch = {"module": module, "arguments": arguments, "environment": environment, "folder": os.getcwd()}
    with open(os.environ[LAUNCH_FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps(launch) + "\n")


def ray(arguments: list[str]) -> None:
    """`ray status` of a cluster in which all nodes have joined; `ray start` and `ray stop` do nothing."""
    if arguments[:1] == ["status"]:
        for node in range(int(os.environ.get("NNODES", "1"))):
            sys.stdout.write(f" 1 node_{node}\n")


def srun(arguments: list[str]) -> None:
    """Run the program that follows the options, here."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    if arguments:
        os.execvp(arguments[0], arguments)


def scontrol(arguments: list[str]) -> None:
    """`scontrol show hostnames LIST`."""
    sys.stdout.write("\n".join(arguments[-1].split(",")) + "\n")


def hostname(_: list[str]) -> None:
    sys.stdout.write("127.0.0.1\n")


def sleep(_: list[str]) -> None:
    """Nothing is being waited for."""


STAND_INS: dict[str, Callable[[list[str]], None]] = {
    "python": python,
    "python3": python,
    "rredcot": rredcot,
    "ray": ray,
    "srun": srun,
    "scontrol": scontrol,
    "hostname": hostname,
    "sleep": sleep,
}

if __name__ == "__main__":
    STAND_INS[sys.argv[1]](sys.argv[2:])
