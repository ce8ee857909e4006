"""Runs after ``verl.utils.config``: verl's main program checks our options where it checks its own.

``verl.trainer.main_ppo`` calls ``validate_config`` once Hydra has composed the configuration and before it starts Ray. The
trainer, which checks again, exists only half a minute and a thousand log lines later, in a process of Ray's.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from verl.utils import config as verl_config

_original = verl_config.validate_config


@functools.wraps(_original)
def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
    """verl's own check, then ours on a copy: the configuration is changed by nobody but the trainer.

    Raises:
        ValueError: as ``start.check_run``.
    """
    from rredcot_plugin.integrations.verl.start import (
        check_run,  # verl is still being imported when this module is
    )

    _original(config, *args, **kwargs)
    check_run(copy.deepcopy(config))


verl_config.validate_config = validate_config
