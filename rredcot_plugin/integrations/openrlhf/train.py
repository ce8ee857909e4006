"""A run of ``openrlhf.cli.train_ppo_ray`` in whose processes our additions are installed."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rredcot_plugin.installed import installed_version
from rredcot_plugin.integrations.openrlhf import OPTIONS, SUPPORTED_OPENRLHF
from rredcot_plugin.integrations.openrlhf.advice import warn_of_pointless
from rredcot_plugin.integrations.openrlhf.arguments import ESTIMATOR, PREFIX, Arguments, split_arguments
from rredcot_plugin.integrations.openrlhf.hooks import activate
from rredcot_plugin.integrations.openrlhf.settings import check_flags, for_processes, read_settings

PROGRAM = "openrlhf.cli.train_ppo_ray"
HOOK = "rredcot_plugin.integrations.openrlhf.hooks.activate"

DEFAULT_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
"""What OpenRLHF gives its workers where it starts Ray itself (``train``)."""

CARRIED = ("OPENRLHF_PLATFORM", "OPENRLHF_CPU_ENGINE", "DS_ACCELERATOR", "PYTHONPATH", "OMP_NUM_THREADS")
OURS = "RREDCOT_"
"""What begins so goes to every process too: the options of the run, and what rewards of the recipes are told."""

HELP = f"""\
usage: python -m rredcot_plugin.integrations.openrlhf <flags of {PROGRAM}>

  {ESTIMATOR} rredcot       credit by segment
  {ESTIMATOR} rredcot_ppo   the same with a critic's values
  {ESTIMATOR} red           the reward model's score at every token (RED)
      any other estimator is OpenRLHF's own run
  {PREFIX}<key> VALUE           any key of docs/reference/configuration.md, in YAML;
                                      {PREFIX}segmenter_kwargs.tokens 8 for one that is nested

OPENRLHF_PLATFORM=cpu trains on a machine without an accelerator. The flags of OpenRLHF follow.
"""


def main(words: Sequence[str]) -> None:
    """Check our options, start Ray with the hook that every worker runs first, and hand over to OpenRLHF."""
    helps = "-h" in words or "--help" in words
    absent = installed_version("openrlhf") is None
    if helps:
        sys.stdout.write(f"{HELP}\n")
        if absent:
            sys.stdout.write("openrlhf is not installed in this environment, so its flags are not shown.\n")
            return
    if absent:  # whatever the words are: Ray would start before OpenRLHF is missed
        _refuse(f"openrlhf is not installed in this environment: it needs openrlhf=={SUPPORTED_OPENRLHF}")
    os.environ.pop(OPTIONS, None)
    try:
        arguments = split_arguments(words)
        if arguments.estimator is not None:
            settings = read_settings(arguments.estimator, arguments.options)
            os.environ[OPTIONS] = for_processes(arguments.estimator, arguments.options)
        activate()
        if arguments.estimator is not None and not helps:
            args = parsed(arguments)
            check_flags(settings, args)
            warn_of_pointless(settings, args)
    except ValueError as error:
        _refuse(str(error))
    if not helps:
        start_ray()
    run_program(arguments)


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"error: {reason}\n")
    raise SystemExit(2)


def run_program(arguments: Arguments) -> None:
    """OpenRLHF's own command line, in this process."""
    sys.argv = [PROGRAM, *arguments.host]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def parsed(arguments: Arguments) -> Any:
    """What OpenRLHF's own parser makes of its flags; it exits where it refuses them. Its parser cannot be imported."""
    from openrlhf.utils import config

    def stop(flat: Any) -> None:
        raise _Parsed(theirs(flat))

    theirs, config.hierarchize = config.hierarchize, stop
    try:
        run_program(arguments)
    except _Parsed as found:
        return found.args[0]
    finally:
        config.hierarchize = theirs
    raise RuntimeError(f"{PROGRAM} has not parsed its flags with openrlhf.utils.config.hierarchize")


class _Parsed(Exception):  # noqa: N818 - it carries the flags out, nothing is wrong
    """Carries the flags out of OpenRLHF's program."""


def environment_of_processes() -> dict[str, str]:
    """Variables of every process, without those that `ray job submit` gives them: Ray refuses a variable that is given twice."""
    environment = {name: os.environ.get(name, value) for name, value in DEFAULT_ENVIRONMENT.items()}
    environment |= {name: text for name, text in os.environ.items() if name in CARRIED or name.startswith(OURS)}
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    given = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: text for name, text in environment.items() if name not in given}


def start_ray() -> None:
    """As OpenRLHF starts it, with a hook; it joins a cluster where RAY_ADDRESS names one. OpenRLHF then starts none."""
    import ray

    resources: dict[str, Any] = {}
    if os.environ.get("OPENRLHF_PLATFORM") == "cpu":
        from rredcot_plugin.integrations.openrlhf_cpu import RESOURCES

        resources = RESOURCES
    ray.init(runtime_env={"env_vars": environment_of_processes(), "worker_process_setup_hook": HOOK}, **resources)
