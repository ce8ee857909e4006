"""What a recipe's script would start: its Hydra overrides or flags, its environment and its working folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.dry_run import stand_in
from rredcot_plugin.dry_run.errors import RecipeError

MAIN = stand_in.MAIN
OPENRLHF_PROGRAMS = (stand_in.OPENRLHF, stand_in.OURS)
SCRIPT_SECONDS = 300
OF_SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")
SHELL_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
BACKGROUND_SECONDS = 60
"""What a script started in the background has so long, after the script's end, to come to its trainer."""

SLURM_NODES = r"(?:--nodes[= ]|-N ?)(\d+)"
SLURM_GPUS = r"(?:--gpus-per-node[= ]|--gres[= ]gpu:)(?:\w+:)?(\d+)"
SLURM_CPUS = r"(?:--cpus-per-task[= ]|-c ?)(\d+)"


@dataclass(frozen=True)
class Launch:
    """A start of a trainer that has not happened. ``overrides`` are Hydra's, or flags where ``program`` is one of OpenRLHF's.

    ``config_path`` and ``config_name`` are Hydra's options of these names, None where verl's own configuration is
    meant; a relative ``config_path`` is relative to verl's main program, as Hydra has it.
    """

    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    config_path: str | None = None
    config_name: str | None = None
    program: str = MAIN

    @property
    def is_openrlhf(self) -> bool:
        return self.program in OPENRLHF_PROGRAMS


def find_launch(
    script: Path, overrides: Sequence[str], scratch: Path, variables: Mapping[str, str] | None = None
) -> Launch:
    """Run the script with stand-ins in front of ``PATH`` and ``PYTHON``, in the present folder.

    Args:
        overrides: arguments of the script.
        scratch: an empty folder for the stand-ins.
        variables: environment variables on top of the present ones.

    Raises:
        RecipeError: no shell script, which is not run; or one that fails, starts no trainer, or another program of one,
            or keeps an argument to itself or sets its key again.
    """
    _check_is_shell(script)
    before = {**os.environ, **(variables or {})}
    stand_ins = _write_stand_ins(scratch / "bin")
    launch_file = scratch / "launches.jsonl"
    launch_file.touch()
    environment = {
        **_slurm(script),
        **before,
        "PATH": f"{stand_ins}{os.pathsep}{before.get('PATH', os.defpath)}",
        "PYTHON": str(stand_ins / "python"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(stand_ins), before.get("PYTHONPATH")))),
        stand_in.LAUNCH_FILE: str(launch_file),
        stand_in.REAL_PYTHON: sys.executable,
    }
    _run(script, overrides, environment, launch_file)
    launches = [json.loads(line) for line in launch_file.read_text(encoding="utf-8").splitlines()]
    if len(launches) != 1:
        found = ", ".join(launch["module"] for launch in launches) or "no trainer"
        raise RecipeError(
            f"{script}: expected one start of `python -m {MAIN}` or `python -m {stand_in.OURS}` (python or $PYTHON), got {found}"
        )
    launch = _read(script, launches[0], before, stand_ins)
    _check_reached(script, overrides, launches[0]["arguments"], "OpenRLHF" if launch.is_openrlhf else "verl")
    return launch


def _check_reached(script: Path, overrides: Sequence[str], arguments: Sequence[str], trainer: str) -> None:
    """A script without "$@" drops its arguments in silence, and one that goes on after it may set a key again: what it is
    then checked for is not what was asked."""
    bare = _bare(arguments)  # a script may add the + of a new key itself
    pairs = [f"{flag}={value}" for flag, value in itertools.pairwise(bare)]  # or write a flag as two words
    reached = {*bare, *pairs}
    missing = [
        f"-O {override}" for override, word in zip(overrides, _bare(overrides), strict=True) if word not in reached
    ]
    if missing:
        raise RecipeError(
            f'{script}: {", ".join(missing)} did not reach {trainer}: end the script\'s command with "$@", or write the '
            "key into it"
        )
    asked = _last_values([override for override in overrides if "=" in override])
    last = _last_values(arguments)
    lost = [f"-O {key}={value} (to {last[key]})" for key, value in asked.items() if last.get(key, value) != value]
    if lost:
        raise RecipeError(f'{script}: sets {", ".join(lost)} again after its arguments: end the command with "$@"')


def _bare(arguments: Sequence[str]) -> list[str]:
    """Without Hydra's + in front, which is not part of a key."""
    return [argument.lstrip("+") for argument in arguments]


def _last_values(arguments: Sequence[str]) -> dict[str, str]:
    """The value that each key has in the end; a flag's may be the next word."""
    words, found = _bare(arguments), {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        key, equals, value = word.partition("=")
        found[key] = value if equals else following
    return found


def _check_is_shell(script: Path) -> None:
    """Bash runs any text as commands, a page of documentation too."""
    with script.open(encoding="utf-8", errors="replace") as file:
        first = file.readline(200).strip()
    if not (OF_SHELL.match(first) if first.startswith("#!") else script.suffix in SHELL_SUFFIXES):
        raise RecipeError(
            f"{script}: expected a shell script: a first line that names a shell, such as #!/usr/bin/env bash, or a name that "
            f"ends in {', '.join(SHELL_SUFFIXES)}"
        )


def _run(script: Path, overrides: Sequence[str], environment: Mapping[str, str], launch_file: Path) -> None:
    running, held = os.pipe()
    with subprocess.Popen(
        ["bash", str(script), *overrides],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=(held,),
        start_new_session=True,
    ) as process:
        os.close(held)
        try:
            _, said = process.communicate(timeout=SCRIPT_SECONDS)
            _wait_for_background(running, launch_file)
        except subprocess.TimeoutExpired as error:
            raise RecipeError(f"{script}: did not finish within {SCRIPT_SECONDS} s without training") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(running)
    if process.returncode != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        raise RecipeError(f"{script}: exit code {process.returncode}: {lines[-1] if lines else 'no message'}")


def _wait_for_background(running: int, launch_file: Path) -> None:
    """Until nothing that the script started holds the other end of the pipe ``running``, or a trainer has been started."""
    end = time.monotonic() + BACKGROUND_SECONDS
    while (
        not launch_file.stat().st_size and time.monotonic() < end and not select.select([running], [], [], 0.1)[0]
    ):
        pass


def _read(script: Path, launch: Mapping[str, object], before: Mapping[str, str], stand_ins: Path) -> Launch:
    program = str(launch["module"])
    if program != MAIN and program not in OPENRLHF_PROGRAMS:
        known = ", ".join((MAIN, *OPENRLHF_PROGRAMS))
        raise RecipeError(f"{script}: starts {program}; a dry run supports {known}")
    environment = dict(launch["environment"])  # type: ignore[call-overload]
    for name in ("PATH", "PYTHON"):  # ours were for the script alone
        environment.pop(name, None)
        if name in before:
            environment[name] = before[name]
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path != str(stand_ins)]
    if any(paths):
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    if program in OPENRLHF_PROGRAMS:
        flags = tuple(map(str, launch["arguments"]))  # type: ignore[call-overload]
        return Launch(flags, environment, Path(str(launch["folder"])), program=program)
    overrides, options = _hydra_arguments(script, list(launch["arguments"]))  # type: ignore[call-overload]
    return Launch(
        tuple(overrides),
        environment,
        Path(str(launch["folder"])),
        options.get("--config-path"),
        options.get("--config-name"),
    )


def _hydra_arguments(script: Path, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Overrides, and the two options of Hydra that say which configuration they are for."""
    overrides: list[str] = []
    options: dict[str, str] = {}
    while arguments:
        argument = arguments.pop(0)
        name, _, value = argument.partition("=")
        key = {"-cp": "--config-path", "-cn": "--config-name"}.get(name, name)
        if key in ("--config-path", "--config-name"):
            options[key] = value or (arguments.pop(0) if arguments else "")
        elif argument.startswith("-"):
            raise RecipeError(f"{script}: a dry run does not support Hydra's option {argument}")
        else:
            overrides.append(argument)
    return overrides, options


def _write_stand_ins(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in stand_in.STAND_INS:
        path = folder / name
        path.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{stand_in.__file__}" {name} "$@"\n', encoding="utf-8"
        )
        path.chmod(0o755)
    site = f"import runpy\nrunpy.run_path({stand_in.__file__!r}, run_name={stand_in.SITE!r})['watch']()\n"
    (folder / f"{stand_in.SITE}.py").write_text(site, encoding="utf-8")
    return folder


def _slurm(script: Path) -> dict[str, str]:
    """What SLURM would tell a batch script, with the nodes, GPUs and CPUs that the script asks for."""
    text = script.read_text(encoding="utf-8", errors="replace")
    if "#SBATCH" not in text:
        return {}
    nodes, gpus, cpus = (
        int(found[1]) if (found := re.search(rf"^#SBATCH\s+{option}", text, re.MULTILINE)) else 1
        for option in (SLURM_NODES, SLURM_GPUS, SLURM_CPUS)
    )
    names = ",".join(f"node{i}" for i in range(nodes))
    return {
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(nodes)),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), names),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(gpus)),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_JOB_ID"), "0"),
        "SLURM_CPUS_PER_TASK": str(cpus),
        "SLURM_SUBMIT_DIR": str(script.resolve().parent),
    }
