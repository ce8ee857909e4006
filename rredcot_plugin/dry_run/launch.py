"""What a recipe's script would start: its Hydra overrides or flags, its environment and its working folder."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.dry_run import stand_in
from rredcot_plugin.dry_run.errors import RecipeError

MAIN = "verl.trainer.main_ppo"
OPENRLHF_PROGRAMS = (stand_in.OPENRLHF, stand_in.OURS)
SCRIPT_SECONDS = 300
OF_SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")
SHELL_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
SLURM_NODES = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N ?)(\d+)", re.MULTILINE)


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
        stand_in.LAUNCH_FILE: str(launch_file),
        stand_in.REAL_PYTHON: sys.executable,
    }
    _run(script, overrides, environment)
    launches = [json.loads(line) for line in launch_file.read_text(encoding="utf-8").splitlines()]
    if len(launches) != 1:
        found = ", ".join(launch["module"] for launch in launches) or "no trainer"
        raise RecipeError(
            f"{script}: expected one start of `python -m {MAIN}` or `python -m {stand_in.OURS}` (python or $PYTHON), got {found}"
        )
    launch = _read(script, launches[0], before)
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


def _run(script: Path, overrides: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            ["bash", str(script), *overrides],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SCRIPT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise RecipeError(f"{script}: did not finish within {SCRIPT_SECONDS} s without training") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RecipeError(f"{script}: exit code {done.returncode}: {said[-1] if said else 'no message'}")


def _read(script: Path, launch: Mapping[str, object], before: Mapping[str, str]) -> Launch:
    program = str(launch["module"])
    if program != MAIN and program not in OPENRLHF_PROGRAMS:
        known = ", ".join((MAIN, *OPENRLHF_PROGRAMS))
        raise RecipeError(f"{script}: starts {program}; a dry run supports {known}")
    environment = dict(launch["environment"])  # type: ignore[call-overload]
    for name in ("PATH", "PYTHON"):  # ours were for the script alone
        environment.pop(name, None)
        if name in before:
            environment[name] = before[name]
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
    return folder


def _slurm(script: Path) -> dict[str, str]:
    """What SLURM would tell a batch script, with the number of nodes that the script asks for."""
    text = script.read_text(encoding="utf-8", errors="replace")
    if "#SBATCH" not in text:
        return {}
    found = SLURM_NODES.search(text)
    nodes = int(found[1]) if found else 1
    return {
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": ",".join(f"node{i}" for i in range(nodes)),
        "SLURM_SUBMIT_DIR": str(script.resolve().parent),
        "SLURM_JOB_ID": "0",
    }
