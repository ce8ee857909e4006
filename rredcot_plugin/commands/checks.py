"""The checks of `rredcot doctor`: each looks at one thing and says what it found and the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from rredcot_plugin.installed import installed_version

Status = Literal["ok", "failed", "note"]

PLUGIN = "rredcot"
GROUP = "verl.plugins"
INSTALL = "pip install 'rredcot[verl]'"
INSTALL_OPENRLHF = "docs/guides/openrlhf.md says how to install it"
IMPORT_SECONDS = 300

PACKAGES: dict[str, tuple[str, ...]] = {
    "torch": (),
    "transformers": ("5.9", "5.10"),
    "verl": ("0.9.1",),
    "TransferQueue": ("0.1.11",),
    "ray": (),
}
"""Distribution -> the releases that are supported (prefixes of the version); none for any."""

OPENRLHF_PACKAGES: dict[str, tuple[str, ...]] = {
    "torch": (),
    "transformers": ("5.15",),
    "openrlhf": ("0.11.2",),
    "deepspeed": (),
    "ray": (),
}
"""The same where OpenRLHF is the trainer."""


@dataclass(frozen=True)
class Check:
    """One line of the table; ``way_out`` says what to do where the status is not ``ok``."""

    name: str
    status: Status
    found: str
    way_out: str = ""


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Check("Python", "ok" if fine else "failed", found, "" if fine else "use Python 3.11 or later")


def check_package(name: str, supported: Sequence[str], way_out: str = INSTALL) -> Check:
    """Installed, and of a supported release."""
    found = installed_version(name)
    if found is None:
        return Check(name, "failed", "not installed", way_out)
    if not supported or any(f"{found}.".startswith(f"{release}.") for release in supported):
        return Check(name, "ok", found)
    return Check(name, "failed", f"{found}; supported: {' or '.join(supported)}", way_out)


def check_sandbox() -> Check:
    """Whether code rewards can be isolated here; only those need it."""
    from rredcot_plugin.sandbox import available
    from rredcot_plugin.sandbox.isolation import ADVICE

    found = available()
    name = "sandbox for code"
    return Check(name, "ok", str(found)) if found.means is not None else Check(name, "note", str(found), ADVICE)


def check_entry_point(environment: Mapping[str, str]) -> Check:
    """verl finds us (entry point of the installed package), and is not told to leave us out."""
    found = [point for point in entry_points(group=GROUP) if point.name == PLUGIN]
    if not found:
        reason = f"no {PLUGIN!r} in the entry points {GROUP!r}"
        return Check(
            "plugin found by verl", "failed", reason, f"{INSTALL}; a folder on the Python path is not enough"
        )
    policy = environment.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    named = [name.strip() for name in policy.split(",")]
    if policy != "auto" and PLUGIN not in named:
        reason = f"switched off: VERL_USE_EXTERNAL_PLUGINS={policy}"
        way_out = f"unset VERL_USE_EXTERNAL_PLUGINS, or add {PLUGIN!r} to it"
        return Check("plugin found by verl", "failed", reason, way_out)
    return Check("plugin found by verl", "ok", f"{GROUP}: {found[0].value}")


def check_inside_verl(environment: Mapping[str, str]) -> list[Check]:
    """Import verl in a process of its own and look at what it has registered."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        command = [sys.executable, "-m", "rredcot_plugin.commands.verl_state", str(file)]
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            way_out = f"to see all of it: {' '.join(command[:3])} /dev/null"
            return [Check("import of verl", "failed", reason, way_out)]
        return state_checks(json.loads(file.read_text()), environment.get("VERL_PLATFORM", ""))


def state_checks(state: Mapping[str, Any], platform_asked: str) -> list[Check]:
    """Lines for what ``verl_state`` reported."""
    registered = PLUGIN in state["estimators"]
    wrapped = [mode for mode, is_ours in state["trainers"].items() if is_ours]
    missing = sorted(set(state["trainers"]) - set(wrapped))
    engines = state["engines"]
    group = f"+rredcot@algorithm.rredcot=default ({len(state['options'])} keys)"
    loaded = "the plugin was not loaded: see the lines above"
    return [
        _line("advantage estimator", registered, PLUGIN, f"{PLUGIN} is not registered", loaded),
        _line("trainers", not missing, ", ".join(wrapped), f"not wrapped: {', '.join(missing)}", loaded),
        _line("probe engines", bool(engines), ", ".join(engines), "none registered", loaded),
        _platform(state, platform_asked),
        _line("Hydra group", bool(state["options"]), group, "empty", INSTALL),
    ]


def _line(name: str, fine: bool, found: str, wrong: str, way_out: str) -> Check:
    return Check(name, "ok", found) if fine else Check(name, "failed", wrong, way_out)


def _platform(state: Mapping[str, Any], asked: str) -> Check:
    by = f" (VERL_PLATFORM={asked})" if asked else ""
    if state["available"]:
        return Check("device", "ok", f"{state['devices']} x {state['device']}{by}")
    if asked:
        way_out = "unset VERL_PLATFORM, or set it to cpu"
        return Check("device", "failed", f"platform {asked!r} has no device here", way_out)
    return Check("device", "note", "no accelerator", "to train on this machine's CPU: export VERL_PLATFORM=cpu")


def run_checks(environment: Mapping[str, str] = os.environ) -> list[Check]:
    """All checks of the trainers that are installed; those of verl where none is. What needs verl is left out where it is
    of another release."""
    checks = [check_python()]
    if installed_version("openrlhf"):
        checks += check_openrlhf(environment)
    if installed_version("verl") or not installed_version("openrlhf"):
        checks += check_verl(environment)
    return [*checks, check_sandbox()]


def check_verl(environment: Mapping[str, str]) -> list[Check]:
    """Packages, the entry point, and what verl has registered."""
    checks = [check_package(name, supported) for name, supported in PACKAGES.items()]
    checks.append(check_entry_point(environment))
    verl = next(check for check in checks if check.name == "verl")
    return [*checks, *(check_inside_verl(environment) if verl.status == "ok" else [])]


def check_openrlhf(environment: Mapping[str, str]) -> list[Check]:
    """Packages, and whether there is something to train on."""
    found = [check_package(*item, INSTALL_OPENRLHF) for item in OPENRLHF_PACKAGES.items()]
    if environment.get("OPENRLHF_PLATFORM", "").strip().lower() == "cpu":
        device = Check("OpenRLHF's device", "ok", "the CPU (OPENRLHF_PLATFORM=cpu)")
        return [*found, device, check_engine(environment)]
    for name in ("flash-attn", "vllm"):
        if not installed_version(name):
            found.append(
                Check(name, "note", "not installed", f"{INSTALL_OPENRLHF}; OPENRLHF_PLATFORM=cpu works without it")
            )
    import torch

    if torch.cuda.is_available():
        return [*found, Check("OpenRLHF's device", "ok", f"{torch.cuda.device_count()} x cuda")]
    way_out = "to train on this machine's CPU: export OPENRLHF_PLATFORM=cpu"
    return [*found, Check("OpenRLHF's device", "note", "no accelerator", way_out)]


def check_engine(environment: Mapping[str, str]) -> Check:
    """What generates on OpenRLHF's CPU platform."""
    from rredcot_plugin.integrations.openrlhf_cpu import ENGINE, VLLM, chosen_engine, vllm_version

    try:
        engine = chosen_engine(environment)
    except ValueError as error:
        wrong, _, way_out = str(error).rpartition(": ")
        return Check("OpenRLHF's engine", "failed", wrong, way_out)
    if engine == "vllm":
        return Check("OpenRLHF's engine", "ok", f"vLLM {vllm_version()} ({ENGINE}=vllm)")
    return Check("OpenRLHF's engine", "ok", f"transformers; {ENGINE}=vllm uses {VLLM} where it is installed")
