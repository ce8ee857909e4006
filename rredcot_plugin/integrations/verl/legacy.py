"""Runs after ``verl.trainer.ppo.ray_trainer``: the legacy trainer says at its start that it cannot use rredcot.

It has neither TransferQueue nor the methods that the mixin wraps, and would come as far as the first advantages.
"""

from __future__ import annotations

import functools
from typing import Any

from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from rredcot_plugin.integrations.verl.estimator import NEEDS_TRAINER
from rredcot_plugin.integrations.verl.settings import is_ours

_original_init = RayPPOTrainer.__init__


@functools.wraps(_original_init)
def _init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
    if is_ours(config):
        raise ValueError(NEEDS_TRAINER)
    _original_init(self, config, *args, **kwargs)


RayPPOTrainer.__init__ = _init  # type: ignore[method-assign]
