"""Everything that is checked before a run, in one place for whoever starts it: verl's main program, the trainer,
`rredcot dry-run` and `rredcot explain`."""

from __future__ import annotations

import dataclasses
from typing import Any

from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.estimator import NEEDS_TRAINER
from rredcot_plugin.integrations.verl.near_misses import check_estimator_name, check_keys
from rredcot_plugin.integrations.verl.settings import (
    Resolved,
    check_estimator,
    is_ours,
    resolve_settings,
    switch_on_critic,
)


def check_run(config: Any) -> Resolved | None:
    """The options of a run; None where the estimator is not ours. ``critic.enable`` is set where ours needs a critic.

    Raises:
        ValueError: whatever is wrong, naming key, value and way out.
    """
    check_estimator_name(config)
    if not is_ours(config):
        return None
    if not config.trainer.use_v1:
        raise ValueError(NEEDS_TRAINER)
    check_keys(config)
    resolved = resolve_settings(config)
    chosen = switch_on_critic(config)
    check_estimator(config, resolved.config)
    return dataclasses.replace(resolved, choices=resolved.choices | chosen)


def begin_run(config: Any) -> Resolved | None:
    """``check_run``, with the warnings that belong into the log of a run; errors alike."""
    resolved = check_run(config)
    if resolved is not None:
        warn_of_pointless(config, resolved.config)
    return resolved
