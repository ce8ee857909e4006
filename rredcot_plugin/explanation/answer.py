"""The explanation of a configuration: of a script that starts verl, of overrides, or of options by themselves."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rredcot_plugin.biases import biases_of
from rredcot_plugin.choices import automatic
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.explanation.cost import Sizes, costs, with_model
from rredcot_plugin.options import Options
from rredcot_plugin.presets import GIVEN, PRESET, PRESET_SAYS, PRESETS, known_keys, resolve_keys
from rredcot_plugin.registry import BASELINES, SEGMENTERS, VALUE_ESTIMATORS, Registry

OURS = "algorithm.rredcot."
HOME = re.compile(r"^\+{0,2}" + re.escape(OURS))
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


def needs_verl(overrides: Sequence[str]) -> bool:
    """Whether an override is about more than ``algorithm.rredcot``, whose keys may be written with or without it."""
    known = known_keys()
    keys = [HOME.sub("", pair.partition("=")[0]) for pair in overrides]
    return any("@" in key or ("." in key and key.partition(".")[0] not in known) for key in keys)


def looks_like_key(word: str) -> bool:
    """Whether a word without ``=`` is rather a key than the name of a file: no folder and no ending, or a key of ours."""
    key = HOME.sub("", word)
    return "/" not in word and ("." not in key or key.partition(".")[0] in known_keys())


def explain_options(pairs: Sequence[str]) -> Explanation:
    """Options of ``algorithm.rredcot``, ``key=value`` with values in YAML; no host is asked.

    Raises:
        ValueError: a pair that cannot be read, an unknown key, or a value that is not allowed.
    """
    from rredcot_plugin.commands.pairs import read_pairs

    keys, sources = resolve_keys(read_pairs([HOME.sub("", pair) for pair in pairs], option="option"))
    config = RRedCoTConfig.from_keys(keys, sources)
    choices = automatic(config)
    lines = tuple(
        costs(
            config,
            str(choices["probe_backend"].value if "probe_backend" in choices else config.probe_backend),
            None,
        )
    )
    return Explanation(None, tuple(rows_of(config, sources, choices)), lines, tuple(biases_of(config)))


def explain_overrides(overrides: Sequence[str]) -> Explanation:
    """Overrides on verl's own configuration, as its main program would get them; ``algorithm.adv_estimator`` is
    ``rredcot`` unless they name another.

    Raises:
        RecipeError: what verl or rredcot object to.
    """
    from rredcot_plugin.dry_run.launch import Launch

    launch = Launch(("algorithm.adv_estimator=rredcot", *map(_in_full, overrides)), {}, Path.cwd())
    return _explain_launch(launch)


def _in_full(pair: str) -> str:
    """An override of ours with its whole name, also where its key is unknown; others as they are."""
    short = HOME.sub("", pair)
    is_ours = short != pair or short.partition("=")[0].partition(".")[0] in known_keys()
    return f"++{OURS}{short}" if is_ours else pair


def explain_script(script: Path, overrides: Sequence[str]) -> Explanation:
    """A script that starts a trainer, with its own environment and overrides; nothing is started.

    Raises:
        RecipeError: the script starts no trainer, or what the trainer or rredcot object to.
    """
    from rredcot_plugin.dry_run.errors import RecipeError
    from rredcot_plugin.dry_run.launch import find_launch

    with tempfile.TemporaryDirectory(prefix="rredcot_explain_") as scratch:
        launch = find_launch(script, overrides, Path(scratch))
    if launch.is_openrlhf:
        from rredcot_plugin.explanation.openrlhf import explain_openrlhf

        return explain_openrlhf(launch)
    if find_spec("verl") is None:
        raise RecipeError("starts verl, which is not installed in this environment: pip install 'rredcot[verl]'")
    return _explain_launch(launch)


def _explain_launch(launch: Any) -> Explanation:
    from rredcot_plugin.dry_run.configure import compose, resolve_options
    from rredcot_plugin.integrations.verl.advice import notes_of, warnings_of

    config = compose(launch)
    name = str(config.algorithm.adv_estimator)
    resolved = resolve_options(config)
    if resolved is None:
        notes = [f"algorithm.adv_estimator={name} is not one of rredcot's: this run does not use it"]
        if config.algorithm.get("rredcot") is not None:
            notes.append("the keys of algorithm.rredcot are read by nobody in this run")
        return Explanation(name, notes=tuple(notes))
    settings = resolved.config
    backend = resolved.choices.get("probe_backend")
    return Explanation(
        name,
        tuple(rows_of(settings, resolved.sources, resolved.choices)),
        tuple(costs(settings, str(backend.value if backend else settings.probe_backend), _sizes(config))),
        tuple(warnings_of(config, settings)),
        tuple(notes_of(config, settings)),
    )


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
    from rredcot_plugin.commands.names import first_sentence

    registry = REGISTRIES.get(key)
    if registry is None or value == "auto":
        return ""
    return first_sentence(registry.factory(value))


def _sizes(config: Any) -> Sizes:
    """Sizes of a run; the model's from a folder, the local cache or the models known to rredcot."""
    sizes = Sizes(
        config.data.max_prompt_length, config.data.max_response_length, config.actor_rollout_ref.rollout.n, None
    )
    return with_model(sizes, "actor_rollout_ref.model.path", str(config.actor_rollout_ref.model.path))
