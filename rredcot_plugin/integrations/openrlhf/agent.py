"""Runs after ``openrlhf.utils.agent``: executors that hand on which part of a response earned what.

OpenRLHF keeps one reward of a rollout. What else a reward function says, and what single turns of an agent were paid, travels
among the ``extra_logs`` of a response; ``samples`` takes it out before they become tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import openrlhf.utils.agent as host

from rredcot_plugin.adapter.process_rewards import FIELD
from rredcot_plugin.integrations.openrlhf.earned import TOLD, TURNS

LOGS = "extra_logs"

SingleTurn: Any = host.SingleTurnAgentExecutor
MultiTurn: Any = host.MultiTurnAgentExecutor


def with_logs(found: Any, **more: Any) -> dict[str, Any]:
    """The dictionary with ``more`` among its ``extra_logs``."""
    return {**found, LOGS: {**(found.get(LOGS) or {}), **more}}


class RRedCoTSingleTurnAgentExecutor(SingleTurn):
    """OpenRLHF's; ``process_rewards`` in what a reward function or a server returns has an entry for each query."""

    async def _fetch_rewards_via_func(self, *args: Any) -> Any:
        return _kept(await super()._fetch_rewards_via_func(*args))

    async def _fetch_rewards_via_http(self, *args: Any) -> Any:
        return _kept(await super()._fetch_rewards_via_http(*args))


def _kept(found: list[Any]) -> list[Any]:
    """OpenRLHF asks for one query at a time, so the entry is the first."""
    return [
        with_logs(own, **{TOLD: _first(own[FIELD])}) if isinstance(own, Mapping) and FIELD in own else own
        for own in found
    ]


def _first(said: Any) -> Any:
    return said[0] if isinstance(said, list | tuple) and said else said


class RRedCoTMultiTurnAgentExecutor(MultiTurn):
    """OpenRLHF's, which adds up what the steps of an agent were paid; here each turn's share is told as well."""

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        paid: list[float] = []
        own, make = copy.copy(self), self.agent_instance_cls
        own.agent_instance_cls = lambda: _Noting(make(), paid)
        found = await MultiTurn.execute(own, *args, **kwargs)
        ends = [end for _, end in found["action_ranges"]]
        return with_logs(found, **{TURNS: [list(pair) for pair in zip(ends, paid, strict=False)]})


class _Noting:
    """The agent's instance; what its steps are paid is written down."""

    def __init__(self, instance: Any, paid: list[float]) -> None:
        self._instance, self._paid = instance, paid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    async def step(self, *args: Any, **kwargs: Any) -> Any:
        found = await self._instance.step(*args, **kwargs)
        self._paid.append(float(found["rewards"]))  # now: an agent may pay the next turn with the same tensor
        return found


host.SingleTurnAgentExecutor = RRedCoTSingleTurnAgentExecutor
host.MultiTurnAgentExecutor = RRedCoTMultiTurnAgentExecutor
