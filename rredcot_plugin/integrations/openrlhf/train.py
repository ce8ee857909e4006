"""A run of ``openrlhf.cli.train_ppo_ray`` in whose processes our additions are installed."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from rredcot_plugin.integrations.openrlhf import OPTIONS
from rredcot_plugin.integrations.openrlhf.arguments import ESTIMATOR, PREFIX, split_arguments
from rredcot_plugin.integrations.openrlhf.hooks import activate
from rredcot_plugin.integrations.openrlhf.settings import read_settings

PROGRAM = "openrlhf.cli.train_ppo_ray"
HOOK = "rredcot_plugin.integrations.openrlhf.hooks.activate"

DEFAULT_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
"""What OpenRLHF gives its workers where it starts Ray itself (``train``)."""

CARRIED = ("OPENRLHF_PLATFORM", "DS_ACCELERATOR", "PYTHONPATH", "OMP_NUM_THREADS", OPTIONS)

HELP = f"""\
usage: python -m rredcot_plugin.integrations.openrlhf <flags of {PROGRAM}>

  {ESTIMATOR} rredcot   credit by segment; any other estimator is OpenRLHF's own run
  {PREFIX}<key> VALUE           any key of docs/reference/configuration.md, in YAML;
                                      {PREFIX}segmenter_kwargs.tokens 8 for one that is nested

OPENRLHF_PLATFORM=cpu trains on a machine without an accelerator. The flags of OpenRLHF follow.
"""


def main(words: Sequence[str]) -> None:
    """Check our options, start Ray with the hook that every worker runs first, and hand over to OpenRLHF."""
    if "-h" in words or "--help" in words:
        sys.stdout.write(f"{HELP}\n")
    try:
        arguments = split_arguments(words)
        if arguments.options is not None:
            read_settings(arguments.options)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    os.environ.pop(OPTIONS, None)
    if arguments.options is not None:
        os.environ[OPTIONS] = json.dumps(arguments.options)
    activate()
    if "-h" not in words and "--help" not in words:
        start_ray()
    sys.argv = [PROGRAM, *arguments.host]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def start_ray() -> None:
    """As OpenRLHF starts it, with a hook; it joins a cluster where RAY_ADDRESS names one. OpenRLHF then starts none."""
    import ray

    environment = {name: os.environ.get(name, value) for name, value in DEFAULT_ENVIRONMENT.items()}
    environment |= {name: os.environ[name] for name in CARRIED if name in os.environ}
    resources: dict[str, Any] = {}
    if os.environ.get("OPENRLHF_PLATFORM") == "cpu":
        from rredcot_plugin.integrations.openrlhf_cpu import RESOURCES

        resources = RESOURCES
    ray.init(runtime_env={"env_vars": environment, "worker_process_setup_hook": HOOK}, **resources)
