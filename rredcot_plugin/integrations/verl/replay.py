"""Continue a trace of verl's tool loop: the loop runs anew, is told again what the model wrote before the state, and plays
the tools for real. What it asks with is compared with what was recorded before every turn.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import hydra
from verl.experimental.agent_loop import tool_agent_loop  # noqa: F401  registers the loop
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopOutput,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.tools.tool_registry import load_all_tools
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import get_dataset_class
from verl.utils.import_utils import resolve_config_path
from verl.workers.rollout.replica import TokenOutput

from rredcot_plugin.integrations.verl.settings import TOOL_LOOP

logger = logging.getLogger(__name__)

SHOWN = 100
"""Characters of a call and of each answer, from shortly before they differ, in the message about a difference."""

Generate = Callable[[Sequence[int], dict[str, Any], dict[str, Any]], Awaitable[TokenOutput]]
"""Tokens to continue, sampling parameters and media of the loop -> what a server generates."""


@dataclass(frozen=True)
class State:
    """One distinct prefix (prompt and response tokens; ``mask``: whether a token is the model's), with the row whose
    settings it is played and scored by. ``group`` tells apart equal tokens whose tools may differ.
    """

    prompt: tuple[int, ...]
    prefix: tuple[int, ...]
    row: int
    mask: tuple[bool, ...] = ()
    group: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """All but the row."""
        return self.prompt, self.prefix, self.mask, self.group


def turns_of(mask: Sequence[bool]) -> list[slice]:
    """Columns of the model's turns before a state; the last one is the turn in which the state lies, empty where the
    turn begins with it.

    >>> turns_of([True, True, False, True]), turns_of([True, False]), turns_of([])
    ([slice(0, 2, None), slice(3, 4, None)], [slice(0, 1, None), slice(2, 2, None)], [slice(0, 0, None)])
    """
    length = len(mask)
    starts = [i for i in range(length) if mask[i] and (i == 0 or not mask[i - 1])]
    ends = [i + 1 for i in range(length) if mask[i] and (i + 1 == length or not mask[i + 1])]
    found = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    return found if length and mask[-1] else [*found, slice(length, length)]


class DifferentReplayError(Exception):
    """The loop asked before turn ``turn`` with other tokens than were recorded, or (``asked``: None) never."""

    def __init__(self, turn: int, asked: Sequence[int] | None) -> None:
        super().__init__(f"before turn {turn}")
        self.turn, self.asked = turn, asked


class ReplayingClient:
    """What verl's loops call the server manager: it repeats the recorded turns before the state token by token, goes on
    from the state with what ``generate`` adds, and then leaves all turns to ``generate``.

    Raises:
        DifferentReplayError: from ``generate()``, where the loop does not ask with the recorded tokens.
    """

    def __init__(self, state: State, generate: Generate) -> None:
        self._state, self._generate = state, generate
        self._turns = turns_of(state.mask)
        self._asked = 0

    @property
    def missing(self) -> int | None:
        """The first turn before or at the state that was not asked for; None if there is none."""
        return self._asked if self._asked < len(self._turns) else None

    async def generate(
        self, request_id: Any, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        """``request_id`` is dropped: it names the session of the loop, and a continuation's seed names its request."""
        number, self._asked = self._asked, self._asked + 1
        if number >= len(self._turns):
            return await self._generate(prompt_ids, sampling_params, media)
        state, turn = self._state, self._turns[number]
        if list(prompt_ids) != [*state.prompt, *state.prefix[: turn.start]]:
            raise DifferentReplayError(number, prompt_ids)
        recorded = list(state.prefix[turn])
        if number < len(self._turns) - 1:
            return TokenOutput(token_ids=recorded)
        output = await self._generate([*prompt_ids, *recorded], sampling_params, media)
        ids = [*recorded, *output.token_ids]
        return output.model_copy(update={"token_ids": ids, "log_probs": None, "routed_experts": None})


class ToolLoop:
    """verl's tool loop with the tools, tokenizer and data settings of a run, as its agent loop workers have them."""

    def __init__(self, config: Any) -> None:
        rollout, model = config.actor_rollout_ref.rollout, omega_conf_to_dataclass(config.actor_rollout_ref.model)
        paths = {
            key: resolve_config_path(path) if (path := rollout.multi_turn.get(key)) else None
            for key in ("tool_config_path", "function_tool_path")
        }
        self.tokenizer = model.tokenizer
        self._parts = {
            "trainer_config": DictConfigWrap(config),
            "tokenizer": model.tokenizer,
            "processor": model.processor,
            "hf_model_type": getattr(model.hf_config, "model_type", None),
            "dataset_cls": get_dataset_class(config.data),
            "data_config": DictConfigWrap(config.data),
            "tools": ToolListWrap(load_all_tools(**paths)),
        }
        self._warned = False

    async def run(
        self, state: State, fields: dict[str, Any], sampling: dict[str, Any], generate: Generate
    ) -> AgentLoopOutput:
        """A whole trace of the loop that begins with ``state``.

        Args:
            fields: of the row, with ``raw_prompt``, and ``tools_kwargs`` and ``extra_info`` where the data has them.

        Raises:
            DifferentReplayError: the tools did not bring the loop to the state; the first time, the log shows the answer.
        """
        client = ReplayingClient(state, generate)
        loop = hydra.utils.instantiate(_agent_loop_registry[TOOL_LOOP], server_manager=client, **self._parts)
        try:
            # a tool may keep its environment in what it was given
            output: AgentLoopOutput = await loop.run(sampling, **copy.deepcopy(fields))
            if client.missing is not None:
                raise DifferentReplayError(client.missing, None)
        except DifferentReplayError as difference:
            self._warn(state, difference)
            raise
        return output

    def _warn(self, state: State, difference: DifferentReplayError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "rredcot: monte_carlo restores a state by calling the tools again, and %s: such states have no value "
                "(rredcot/monte_carlo/left_out); where tools do not repeat their answers, use siblings or environment",
                self._tell(state, difference),
            )

    def _tell(self, state: State, difference: DifferentReplayError) -> str:
        if difference.turn == 0:
            return "the loop began with another prompt than the recorded one"
        turns = turns_of(state.mask)
        called, turn = turns[difference.turn - 1], turns[difference.turn]
        call = repr(self._read(state.prefix[called])[-SHOWN:])
        if difference.asked is None:
            return f"the loop ended after {call}, which was answered before"
        was = self._read(state.prefix[called.stop : turn.start])
        now = self._read(difference.asked[len(state.prompt) + called.stop :])
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was, now, strict=False)))
        start = max(0, alike - SHOWN // 2)
        return f"{call} was answered {was[start:][:SHOWN]!r} and is now {now[start:][:SHOWN]!r}"

    def _read(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()
