"""The tools of an agent, built as verl's agent loop builds them, and a call for the tiny model to practise."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.findings import Finding

KEY = "actor_rollout_ref.rollout.multi_turn"
LOOP = "tool_agent"
TURNS = "num_turns/max"
"""verl's metric: messages of the longest dialogue, the prompt among them; 2 where no tool was called."""


@dataclass(frozen=True)
class Tools:
    """What the loop was given. ``call`` is in the words of the recipe's parser, None where they are not known here."""

    schemas: tuple[dict[str, Any], ...]
    parser: str
    call: str | None

    def findings(self) -> Iterator[Finding]:
        names = ", ".join(schema["function"]["name"] for schema in self.schemas)
        yield Finding("tools", f"{names}; calls are read by verl's parser {self.parser}")
        if self.call is None:
            text = f"no call will be tried: the tiny model writes calls for hermes, not for {self.parser}"
            yield Finding("tools", text, "note")

    def outcome(self, steps: Mapping[int, Mapping[str, float]]) -> Iterator[Finding]:
        """What became of the calls, from the metrics of the steps."""
        most = max((metrics.get(TURNS, 0.0) for metrics in steps.values()), default=0.0)
        if self.call is None:
            return
        if most > 2:
            yield Finding("tools", f"the tiny model called them: up to {most:g} messages in a dialogue")
        else:
            yield Finding("tools", "the tiny model called none of them: the tool loop has not been tried", "note")


def try_tools(config: Any, environment: Mapping[str, str]) -> Tools | None:
    """Build the tools, as each of verl's agent loop workers would; None where the recipe has none.

    Raises:
        RecipeError: tools without a loop that calls them, a file or class that cannot be loaded, a tool that does not
            start, a parser that verl does not know.
    """
    rollout = config.actor_rollout_ref.rollout
    turns = rollout.multi_turn
    files = {key: turns.get(key) for key in ("tool_config_path", "function_tool_path") if turns.get(key)}
    if not files:
        return None
    loop = rollout.agent.default_agent_loop
    if loop == "single_turn_agent":
        raise RecipeError(
            f"{KEY}: has tools, but actor_rollout_ref.rollout.agent.default_agent_loop={loop} calls none; set {LOOP}"
        )
    schemas = _schemas(files, environment)
    _check_parser(turns.format)
    return Tools(schemas, turns.format, _hermes_call(schemas[0]) if turns.format == "hermes" and schemas else None)


def _schemas(files: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    from verl.tools.tool_registry import load_all_tools

    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "path", [*paths, *sys.path]),
        contextlib.redirect_stdout(io.StringIO()),  # verl's tools print their schema
    ):
        try:
            found = load_all_tools(files.get("tool_config_path"), files.get("function_tool_path"))
        except Exception as error:  # the classes are the recipe's: anything may come out of them
            named = ", ".join(f"{KEY}.{key}={path}" for key, path in files.items())
            raise RecipeError(
                f"{named}: {type(error).__name__}: {error} (tools are imported from PYTHONPATH)"
            ) from error
    return tuple(tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in found)


def _check_parser(name: str) -> None:
    from verl.experimental.agent_loop.tool_parser import ToolParser

    if name not in ToolParser._registry:
        known = ", ".join(sorted(ToolParser._registry))
        raise RecipeError(f"{KEY}.format={name}: verl has no such parser; it has {known}")


def _hermes_call(schema: Mapping[str, Any]) -> str:
    """A call with a 1 for every required argument.

    >>> _hermes_call({"function": {"name": "run", "parameters": {"required": ["code"]}}})
    '<tool_call>{"name": "run", "arguments": {"code": "1"}}</tool_call>'
    """
    function = schema["function"]
    arguments = dict.fromkeys(function.get("parameters", {}).get("required", []), "1")
    return f"<tool_call>{json.dumps({'name': function['name'], 'arguments': arguments})}</tool_call>"
