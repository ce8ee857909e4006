"""What every process of a run does first."""

from __future__ import annotations

import os

from rredcot_plugin.integrations import lazy
from rredcot_plugin.integrations.openrlhf.settings import is_ours

ROOM = "rredcot_plugin.integrations.openrlhf"


def activate() -> None:
    """The CPU platform where ``OPENRLHF_PLATFORM=cpu`` asks for it, and our additions where the run is ours."""
    if os.environ.get("OPENRLHF_PLATFORM", "").strip().lower() == "cpu":
        from rredcot_plugin.integrations import openrlhf_cpu

        openrlhf_cpu.activate()
    if is_ours():
        lazy.install(
            {
                "openrlhf.utils.agent": f"{ROOM}.agent",
                "openrlhf.trainer.ppo_utils.samples_generator": f"{ROOM}.samples",
                "openrlhf.trainer.ray.launcher": f"{ROOM}.reward_actor",
                "openrlhf.trainer.ray.ppo_actor": f"{ROOM}.actor",
                "openrlhf.trainer.ppo_trainer": [f"{ROOM}.maker", f"{ROOM}.trainer"],
            }
        )
