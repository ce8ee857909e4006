"""The generated files of a checkout."""

from __future__ import annotations

import rredcot_plugin  # noqa: F401  registers
from rredcot_plugin.options import ESTIMATOR_DEFAULTS
from rredcot_plugin.reference import configuration, groups, metrics


def files() -> dict[str, str]:
    """Path in a checkout -> text."""
    by_group = {name.removeprefix("rredcot_"): keys for name, keys in ESTIMATOR_DEFAULTS.items() if keys}
    found = {
        "docs/reference/configuration.md": configuration.page(ESTIMATOR_DEFAULTS),
        "docs/reference/metrics.md": metrics.page(),
    }
    for name, text in groups.groups(by_group).items():
        found[f"rredcot_plugin/conf/rredcot/{name}"] = text
    return found
