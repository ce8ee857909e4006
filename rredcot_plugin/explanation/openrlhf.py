"""The explanation of a script that starts OpenRLHF."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rredcot_plugin.allowed import Choice
from rredcot_plugin.choices import automatic
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.explanation.answer import OURS, Explanation, Row, rows_of
from rredcot_plugin.explanation.cost import Sizes, costs, with_model
from rredcot_plugin.installed import installed_version
from rredcot_plugin.options import ESTIMATOR_DEFAULTS

NOT_HERE = "openrlhf is not installed here, so its own flags were not checked and sizes are unknown"


def explain_openrlhf(launch: Launch) -> Explanation:
    """Its options, where they come from and what is chosen; OpenRLHF's own flags are read where it is installed.

    Raises:
        RecipeError: what OpenRLHF's parser or rredcot object to.
    """
    from rredcot_plugin.integrations.openrlhf.advice import notes_of, warnings_of
    from rredcot_plugin.integrations.openrlhf.arguments import ESTIMATOR, PREFIX, split_arguments
    from rredcot_plugin.presets import resolve_keys

    try:
        arguments = split_arguments(launch.overrides)
        name = arguments.estimator
        if name is None:
            theirs = dict(zip(arguments.host, arguments.host[1:], strict=False)).get(ESTIMATOR, "gae")
            return Explanation(
                theirs, notes=(f"{ESTIMATOR} {theirs} is not one of rredcot's: this run is OpenRLHF's own",)
            )
        keys, sources = resolve_keys(arguments.options, ESTIMATOR_DEFAULTS[name], f"{ESTIMATOR} {name}")
        settings = RRedCoTConfig.from_keys(keys, sources)
    except ValueError as error:
        raise RecipeError(f"algorithm: {str(error).replace(OURS.rstrip('.'), PREFIX.rstrip('.'))}") from error
    args = _flags(launch, arguments) if installed_version("openrlhf") else None
    followed, choices = _choices(settings, args)
    return Explanation(
        name,
        tuple(_rows(followed, sources, choices)),
        tuple(costs(followed, choices, _sizes(args))),
        () if args is None else tuple(warnings_of(followed, args)),
        (NOT_HERE,) if args is None else tuple(notes_of(followed, args)),
    )


def _rows(settings: RRedCoTConfig, sources: Mapping[str, str], choices: Mapping[str, Choice]) -> Iterator[Row]:
    """Those of keys that have a meaning here."""
    from rredcot_plugin.options import V1_ONLY

    for row in rows_of(settings, sources, choices):
        if row.key not in V1_ONLY:
            own = row.source == "verl"
            yield dataclasses.replace(row, source="OpenRLHF", says="Follows a flag of OpenRLHF's.") if own else row


def _flags(launch: Launch, arguments: Any) -> Any:
    """OpenRLHF's flags, checked as at the start of a run."""
    from rredcot_plugin.dry_run.openrlhf import read_flags, resolve_options

    with tempfile.TemporaryDirectory(prefix="rredcot_explain_") as scratch:
        args = read_flags(launch, Path(scratch) / "flags.json")
    resolve_options(arguments, args)
    return args


def _choices(settings: RRedCoTConfig, args: Any) -> tuple[RRedCoTConfig, Mapping[str, Choice]]:
    """The options as a run has them, and why."""
    flag = "--algo.advantage.no_std_norm"
    by_std = True if args is None else not args.algo.advantage.no_std_norm
    found = automatic(settings, by_std=by_std)
    if settings.scale is None:
        given = "not given" if by_std else "given"
        found["scale"] = Choice(
            found["scale"].value, f"follows {flag}, which is {given}" if args else f"follows {flag}"
        )
    if args is None:
        return settings, found
    from rredcot_plugin.integrations.openrlhf.settings import follow, longest_response

    followed = follow(settings, args)
    if followed.segmenter_kwargs != settings.segmenter_kwargs:
        flag, length = longest_response(args)
        found["segmenter_kwargs.max_response_tokens"] = Choice(
            length, f"segments are spread over the longest response, {flag}, unless told otherwise"
        )
    return dataclasses.replace(followed, scale=settings.scale), found


def _sizes(args: Any) -> Sizes | None:
    if args is None:
        return None
    from rredcot_plugin.integrations.openrlhf.settings import longest_response

    _, response = longest_response(args)
    sizes = Sizes(max(0, args.data.max_len - response), response, args.rollout.n_samples_per_prompt, None)
    return with_model(sizes, "--actor.model_name_or_path", str(args.actor.model_name_or_path))
