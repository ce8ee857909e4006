"""The explanation of a script, of overrides on verl's configuration, or of bare options."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rredcot_plugin.biases import biases_of
from rredcot_plugin.choices import automatic
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.explanation.answer import OURS, Explanation, rows_of
from rredcot_plugin.explanation.cost import costs
from rredcot_plugin.presets import known_keys, resolve_keys
from rredcot_plugin.written import HOME, read_pairs


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
    keys, sources = resolve_keys(read_pairs(pairs, option="option"))
    config = RRedCoTConfig.from_keys(keys, sources)
    choices = automatic(config)
    lines = tuple(costs(config, choices, None))
    return Explanation(None, tuple(rows_of(config, sources, choices)), lines, tuple(biases_of(config)))


def explain_overrides(overrides: Sequence[str]) -> Explanation:
    """Overrides on verl's own configuration, as its main program would get them; ``algorithm.adv_estimator`` is
    ``rredcot`` unless they name another.

    Raises:
        RecipeError: what verl or rredcot object to.
    """
    from rredcot_plugin.dry_run.launch import Launch
    from rredcot_plugin.explanation.verl import explain_verl

    launch = Launch(("algorithm.adv_estimator=rredcot", *map(_in_full, overrides)), {}, Path.cwd())
    return explain_verl(launch)


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
    from rredcot_plugin.explanation.verl import explain_verl

    return explain_verl(launch)
