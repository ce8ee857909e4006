"""What an explanation says: a row for every option, costs, warnings and notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.options import Options
from rredcot_plugin.presets import GIVEN, PRESET, PRESET_SAYS, PRESETS
from rredcot_plugin.registry import BASELINES, SEGMENTERS, VALUE_ESTIMATORS, Registry, first_sentence

OURS = "algorithm.rredcot."
REGISTRIES: dict[str, Registry] = {
    "segmenter": SEGMENTERS,
    "value_estimator": VALUE_ESTIMATORS,
    "baseline": BASELINES,
}


@dataclass(frozen=True)
class Row:
    """A key with its value; ``source``: default, given, a preset or a key of verl's. Where something was left to be chosen,
    ``becomes`` says what (None: not known before the run) and ``reason`` why. ``says`` is what the key, or what it names,
    does."""

    key: str
    value: Any
    source: str
    says: str
    becomes: Any = None
    reason: str = ""


@dataclass(frozen=True)
class Explanation:
    """``estimator`` is ``algorithm.adv_estimator``, None without a verl configuration; without rows it is not ours."""

    estimator: str | None
    rows: tuple[Row, ...] = ()
    costs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        return {
            "adv_estimator": self.estimator,
            "options": {row.key: {k: v for k, v in vars(row).items() if k != "key"} for row in self.rows},
            "costs": self.costs,
            "warnings": self.warnings,
            "notes": self.notes,
        }


def rows_of(config: RRedCoTConfig, sources: Mapping[str, str], choices: Mapping[str, Any]) -> list[Row]:
    rows = [_preset_row(sources)]
    for key in fields(Options):
        value, source, choice = getattr(config, key.name), sources.get(key.name, "default"), choices.get(key.name)
        named = choice.value if choice is not None and choice.value is not None else value
        says = _says(key.name, named) or str(key.metadata["says"])
        row = Row(key.name, value, source, says)
        if choice is not None:
            before = key.default if value == choice.value and key.name not in sources else value
            row = dataclasses.replace(row, value=before, becomes=choice.value, reason=choice.reason)
        rows.append(row)
    known = {key.name for key in fields(Options)}
    for name, choice in choices.items():
        if name not in known:
            rows.append(Row(name, choice.value, "verl", "Follows a key of verl's.", choice.value, choice.reason))
    return rows


def _preset_row(sources: Mapping[str, str]) -> Row:
    names = [source.removeprefix(f"{PRESET} ") for source in sources.values() if source.startswith(f"{PRESET} ")]
    if not names:
        return Row(PRESET, None, "default", PRESET_SAYS)
    return Row(PRESET, names[0], GIVEN, PRESETS[names[0]].purpose)


def _says(key: str, value: Any) -> str:
    """The first sentence of the docstring of what a key names; empty for other keys."""
    registry = REGISTRIES.get(key)
    if registry is None or value == "auto":
        return ""
    return first_sentence(registry.factory(value))
