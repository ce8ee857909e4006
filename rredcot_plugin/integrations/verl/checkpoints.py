"""The fit of past steps beside verl's own checkpoints, for any of its trainers."""

from __future__ import annotations

import os
from typing import Any

from rredcot_plugin.integrations.verl.runner import CreditRunner


def save_beside(trainer: Any, runner: CreditRunner) -> None:
    """To be called before verl's own files are written: its marker of a complete checkpoint comes last."""
    folder = trainer.config.trainer.default_local_dir
    runner.save(os.path.join(folder, f"global_step_{trainer.global_steps}"))


def load_beside(trainer: Any, runner: CreditRunner) -> None:
    """To be called after verl has loaded its own; nothing where the run starts anew."""
    step, config = trainer.global_steps, trainer.config.trainer
    if step == 0:
        return
    by_path = config.resume_mode == "resume_path"
    folder = os.path.join(config.default_local_dir, f"global_step_{step}")
    runner.load(config.resume_from_path if by_path else folder)
