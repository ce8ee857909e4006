"""The stand-ins that a recipe's script meets instead of Python, Ray and SLURM: `python stand_in.py NAME ARGS...`.

Whatever starts a trainer is written down and not run; other Python programs (a data preparation, say) run. A Python that
is started by its full path meets ``watch``, by ``SITE`` on ``PYTHONPATH``.
Nothing is imported but the standard library, because scripts call Python often.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

MAIN = "verl.trainer.main_ppo"
OPENRLHF = "openrlhf.cli.train_ppo_ray"
OURS = "rredcot_plugin.integrations.openrlhf"
"""verl's program, OpenRLHF's own, and the one that installs us in it."""

LAUNCH_FILE = "RREDCOT_LAUNCH_FILE"
REAL_PYTHON = "RREDCOT_REAL_PYTHON"
OWN_VARIABLES = (LAUNCH_FILE, REAL_PYTHON)

SITE = "sitecustomize"
"""What Python imports at its start, from the folder that the script finds on ``PYTHONPATH``."""

PYTHON_FLAGS = set("bBdEiIOPqsSuvx")
PYTHON_VALUES = ("-X", "-W", "--check-hash-based-pycs")
SRUN_VALUES = "AaBbCcDdeGiJLmMnNopqrSTtwWx"
SRUN_FLAGS = [
    "contiguous",
    "disable-status",
    "exact",
    "exclusive",
    "hold",
    "immediate",
    "kill-on-bad-exit",
    "label",
    "multi-prog",
    "no-allocate",
    "no-kill",
    "overcommit",
    "overlap",
    "oversubscribe",
    "preserve-env",
    "pty",
    "quiet",
    "reboot",
    "spread-job",
    "test-only",
    "unbuffered",
    "use-min-nodes",
    "verbose",
    "whole",
]
"""Options of ``srun`` that take the next word, by their letter, and those with a long name that do not."""


def python(arguments: list[str]) -> None:
    """Write down the start of a trainer; run anything else."""
    module, rest = program_of(arguments)
    if not is_trainer(module):
        real = os.environ[REAL_PYTHON]
        os.execv(real, [real, *arguments])
    write_down(module, rest)


def watch() -> None:
    """The same inside the Python that runs, which may have been started by any name."""
    module, rest = program_of(sys.orig_argv[1:])
    if is_trainer(module):
        write_down(module, rest)
        os._exit(0)


def is_trainer(module: str) -> bool:
    return module.startswith("verl.") or module in (OPENRLHF, OURS)


def program_of(arguments: list[str]) -> tuple[str, list[str]]:
    """The module that Python is asked to run, and its arguments, after Python's own options; none for another program.

    >>> program_of(["-u", "-X", "dev", "-m", "verl.trainer.main_ppo", "a=1"])
    ('verl.trainer.main_ppo', ['a=1'])
    >>> program_of(["prepare.py", "-m", "verl.trainer.main_ppo"])
    ('', [])
    """
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in PYTHON_VALUES:
            words = words[1:]
        elif word == "-m" or (word[:1] == "-" and word[-1:] == "m" and set(word[1:-1]) <= PYTHON_FLAGS):
            return (words[0], words[1:]) if words else ("", [])
        elif not word.startswith("-") or word.startswith("-c"):
            of_verl = os.path.abspath(word).removesuffix(".py").split(os.sep)[-3:] == MAIN.split(".")
            return (MAIN, words) if of_verl else ("", [])
    return "", []


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
    """`ray status` of a cluster in which all nodes have joined, and the program of `ray job submit ... -- PROGRAM`, here;
    `ray start` and `ray stop` do nothing."""
    if arguments[:1] == ["status"]:
        for node in range(int(os.environ.get("NNODES", "1"))):
            sys.stdout.write(f" 1 node_{node}\n")
    elif arguments[:2] == ["job", "submit"] and "--" in arguments:
        run("ray job submit", arguments[arguments.index("--") + 1 :])


def srun(arguments: list[str]) -> None:
    """Run the program that follows the options, here."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2 if takes_next_word(arguments[0]) else 1 :]
    run("srun", arguments)


def takes_next_word(option: str) -> bool:
    """Whether the value of an option of ``srun`` is the next word.

    >>> [takes_next_word(option) for option in ("-N", "-N1", "-l", "--nodes", "--nodes=1", "--overlap")]
    [True, False, False, True, False, False]
    """
    if option.startswith("--"):
        return "=" not in option and option[2:] not in SRUN_FLAGS
    return len(option) == 2 and option[1] in SRUN_VALUES


def run(starter: str, command: list[str]) -> None:
    """In place of this process."""
    if command:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.exit(f"{starter}: {command[0]}: {error.strerror}")


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
