"""Presets: documented sets of options under one name (``algorithm.rredcot.preset``). Explicit keys win over them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rredcot_plugin.options import Options
from rredcot_plugin.registry import VALUE_ESTIMATORS, nearest
from rredcot_plugin.renamed import with_new_keys

PRESET = "preset"
GIVEN = "given"
ESTIMATOR, KWARGS = "value_estimator", "value_kwargs"
OPTIONS = "_kwargs"
PRESET_SAYS = "A documented set of keys under one name; keys that are given beside it win."


@dataclass(frozen=True)
class Preset:
    """``keys`` of ``algorithm.rredcot``, what they are ``for``, and what ``evidence`` there is."""

    keys: Mapping[str, Any]
    purpose: str
    evidence: str


PRESETS = {
    "exact": Preset(
        {
            "segmenter": "sentence",
            "value_estimator": "support",
            "calibrate": "outcome",
            "leave_one_out": True,
            "baseline": "least_variance",
            "mode": "segment_gae",
            "lam": 1.0,
            "scale": "none",
        },
        "An unbiased policy gradient: the default without the division by the group's standard deviation.",
        "On policies small enough to enumerate the bias is below 1e-6 of the gradient's norm, from the second step on "
        "(docs/evidence/tabular.md).",
    ),
    "lean": Preset(
        {"value_estimator": "confidence", "baseline": "trace"},
        "The cost of GRPO plus a fit: no probes, one baseline per trace. Every token of a trace gets the same "
        "advantage; segment credit is for reports only.",
        "On tiny models it learned about as fast as the default (trace_baseline in docs/evidence/learning.md).",
    ),
    "low_variance": Preset(
        {
            "scale": "none",
            "baseline": "trace",
            "baseline_kwargs": {"floor": 0.0001, "pseudo_rollouts": 32},
            "credit_weight": 0.5,
        },
        "The least noise measured with rewards of 0 and 1, with a small bias: one baseline per trace in which "
        "certain segments hardly count and other groups count for more, and half of the luck of later segments taken out.",
        "Tiny models with rewards of 0 and 1 and 4 prompts of 4 rollouts learned in 0.50 to 0.81 of GRPO's steps; with "
        "rewards in between slower than with GRPO (docs/evidence/learning.md).",
    ),
    "paper": Preset(
        {"value_estimator": "support", "proposals": "group", "calibrate": "none", "mode": "weighted"},
        "RREDCoT (arXiv 2606.06475) as far as it is known; docs/reference/assumptions.md lists what is our reading. For "
        "comparisons.",
        "On tiny models it ended below GRPO (rredcot_paper in docs/evidence/learning.md).",
    ),
}


def known_keys() -> list[str]:
    """Every key that ``algorithm.rredcot`` takes, ``preset`` included."""
    return [PRESET, *(f.name for f in fields(Options))]


def resolve_keys(
    given: Mapping[str, Any], base: Mapping[str, Any] | None = None, base_source: str = ""
) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys that differ from the defaults, and where each comes from.

    What is ``given`` wins over its preset, and the preset over ``base`` (what the name of a verl estimator changes of
    the defaults, called ``base_source``). Options go with what they belong to: beside another baseline, say, those of the
    preset's are left out, and so are given options of a value estimator that the preset replaces; beside the same one, what
    is given joins them. Old names become new ones.

    >>> resolve_keys({"preset": "lean", "baseline": "value"})
    ({'value_estimator': 'confidence', 'baseline': 'value'}, {'value_estimator': 'preset lean', 'baseline': 'given'})

    Raises:
        ValueError: what is not a mapping; an unknown key or preset, naming the nearest one; a preset beside keys that leave
            nothing of it.
    """
    if not isinstance(given, Mapping):
        a_preset = f", or +rredcot@algorithm.rredcot={given} for that preset" if given in list(PRESETS) else ""
        raise ValueError(
            f"algorithm.rredcot={given!r}: expected options under their keys, such as algorithm.rredcot.segmenter=newline{a_preset}"
        )
    own = with_new_keys(given)
    known = known_keys()
    for key in own:
        if key not in known:
            hint = nearest(str(key), known)
            raise ValueError(f"unknown key {key!r} in algorithm.rredcot.{hint} Known: {', '.join(known)}")
    name = own.pop(PRESET, None)
    layer = dict(base or {}), dict.fromkeys(base or {}, base_source)
    given_sources = dict.fromkeys(own, GIVEN)
    if name is not None:
        keys = find_preset(name).keys
        if set(keys) <= set(own):
            raise ValueError(
                f"preset={name!r}: every key of this preset is given as well, so it would change nothing; leave those keys "
                f"out. The Hydra group `default` gives every key: use +rredcot@algorithm.rredcot={name} instead of it"
            )
        if left_out := _of_replaced(keys, own, str(layer[0].get(ESTIMATOR, Options.value_estimator))):
            own[KWARGS] = {key: value for key, value in own[KWARGS].items() if key not in left_out}
            given_sources[KWARGS] = f"{GIVEN}; preset {name} leaves out {', '.join(left_out)}"
        layer = _on_top(keys, dict.fromkeys(keys, f"{PRESET} {name}"), *layer)
    return _on_top(own, given_sources, *layer)


def _on_top(
    given: Mapping[str, Any],
    given_sources: Mapping[str, str],
    below: Mapping[str, Any],
    sources: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys that win over those ``below``, and where each comes from. As in a Hydra group, options that are given join those of
    the same thing; those of something that is replaced are left out."""
    kept = {key: value for key, value in below.items() if not _of_another(key, below, given)}
    values, found = kept | dict(given), {key: sources[key] for key in kept} | dict(given_sources)
    for key in kept.keys() & given.keys():
        both = isinstance(kept[key], Mapping) and isinstance(given[key], Mapping)
        if both and key.endswith(OPTIONS) and kept[key].keys() - given[key].keys():
            values[key] = {**kept[key], **given[key]}
            found[key] = f"{found[key]}, the rest {sources[key]}"
    return values, found


def _of_another(key: str, keys: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether ``key`` holds options of what ``keys`` name, and something else is ``given`` in its place."""
    name = key.removesuffix(OPTIONS)
    return name != key and name in keys and given.get(name, keys[name]) != keys[name]


def _of_replaced(keys: Mapping[str, Any], given: Mapping[str, Any], replaced: str) -> list[str]:
    """Given options of the value estimator that a preset's ``keys`` replace, which the preset's does not know: recipes
    give some of the default's. What neither knows is misspelt, and stays for the error to name.
    """
    options = given.get(KWARGS)
    if ESTIMATOR in given or ESTIMATOR not in keys or not isinstance(options, Mapping):
        return []
    foreign = _known_options(replaced) - _known_options(keys[ESTIMATOR])
    return [option for option in options if option in foreign]


def _known_options(estimator: str) -> set[str]:
    return set(inspect.signature(VALUE_ESTIMATORS.factory(estimator)).parameters)


def find_preset(name: object) -> Preset:
    """The preset of this name.

    Raises:
        ValueError: there is none, naming the nearest one.
    """
    if not isinstance(name, str) or name not in PRESETS:
        hint = nearest(str(name), list(PRESETS))
        raise ValueError(f"preset={name!r}: unknown.{hint} Known: {', '.join(PRESETS)}")
    return PRESETS[name]
