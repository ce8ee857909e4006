"""`rredcot list`: what the keys of `algorithm.rredcot` may name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.options import PROBE_BACKENDS
from rredcot_plugin.presets import PRESETS
from rredcot_plugin.registry import BASELINES, SEGMENTERS, SHAPERS, VALUE_ESTIMATORS, Registry, first_sentence
from rredcot_plugin.segmenters import CutSegmenter

ADVANTAGE_ESTIMATORS = ("rredcot", "rredcot_ppo", "red")
"""Written out, because asking verl's registry would take the import of verl."""


def list_names(
    presets: Annotated[bool, typer.Option("--presets", help="List the presets and their keys instead.")] = False,
) -> None:
    """List segmenters, value estimators, baselines, shapers, advantage estimators and probe backends, with their options."""
    console = Console()
    if presets:
        console.print(presets_table())
        return
    default = RRedCoTConfig()
    for title, registry, key in (
        ("Segmenters", SEGMENTERS, "segmenter"),
        ("Value estimators", VALUE_ESTIMATORS, "value_estimator"),
        ("Baselines", BASELINES, "baseline"),
        ("Shapers", SHAPERS, "shapers"),
    ):
        console.print(names_table(title, registry, str(getattr(default, key)), key))
        if registry is SEGMENTERS:
            console.print(Text.assemble(("All but `none` also take  ", "bold"), ", ".join(_written(SHARED))))
        console.print()
    for title, names, key in (
        ("Advantage estimators", ADVANTAGE_ESTIMATORS, "algorithm.adv_estimator"),
        ("Probe backends", PROBE_BACKENDS, "algorithm.rredcot.probe_backend"),
        ("Presets", tuple(PRESETS), "algorithm.rredcot.preset, see --presets"),
    ):
        console.print(Text.assemble((title, "bold"), f"  {', '.join(names)}  ", (key, "dim")))


def presets_table() -> Table:
    """One line a preset: name, what it is for and what is known of it, its keys."""
    caption = Text.assemble(("Presets", "bold"), ("  algorithm.rredcot.preset", "dim"))
    table = Table(title=caption, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it is for, and the evidence", overflow="fold")
    table.add_column("keys; explicit keys win", overflow="fold")
    for name, preset in PRESETS.items():
        keys = "\n".join(f"{key}={value}" for key, value in preset.keys.items())
        table.add_row(name, Text(f"{preset.purpose} {preset.evidence}"), Text(keys))
    return table


def names_table(title: str, registry: Registry, default: str, key: str) -> Table:
    """One line an entry: name, first sentence of its docstring, options with their defaults but those of all segmenters."""
    caption = Text.assemble((title, "bold"), (f"  algorithm.rredcot.{key}", "dim"))
    table = Table(title=caption, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it does", overflow="fold")
    table.add_column("options and defaults", overflow="fold")
    for name in registry.names():
        factory = registry.factory(name)
        shown = f"{name} (default)" if name == default else name
        own = {key: value for key, value in options_of(factory).items() if (key, value) not in SHARED.items()}
        table.add_row(shown, Text(first_sentence(factory)), Text("\n".join(_written(own))))
    return table


def options_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Keyword options of a factory with their defaults, in the order of its signature."""
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _written(options: Mapping[str, Any]) -> list[str]:
    """Options as one writes them, in full, to be copied."""
    # how dataclasses show a default that is made anew, an empty mapping here
    return [f"{key}={'{}' if repr(value) == '<factory>' else repr(value)}" for key, value in options.items()]


SHARED = options_of(CutSegmenter)
"""Options of every segmenter but ``none``."""
