"""``value_estimator: monte_carlo`` inside verl: its own rollout server continues every boundary, through its own tool loop
where that samples (``replay.py``), and its own reward workers score what comes out. Runs right after sampling, while the
server still has the weights that sampled.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tqdm import tqdm
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from rredcot_plugin.adapter.process_rewards import FIELD as PROCESS_REWARDS
from rredcot_plugin.adapter.process_rewards import parse
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.credit.metrics import share
from rredcot_plugin.integrations.verl.replay import DifferentReplayError, State, ToolLoop
from rredcot_plugin.integrations.verl.settings import TOOL_LOOP
from rredcot_plugin.types import Segments
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator

logger = logging.getLogger(__name__)

SEEDED = ("vllm", "hf_cpu")
"""Rollout engines that take a ``seed`` with each request."""


@dataclass
class Tally:
    """What the continuations of a step cost."""

    requests: int = 0
    tokens: int = 0
    failures: list[BaseException] = field(default_factory=list)
    different: set[State] = field(default_factory=set)
    """States that the tools did not bring back."""


class Continuations:
    """Mean reward of continuations from states, ``concurrency`` requests at a time.

    States of a group with the same tokens before them are continued once. The seed of a request is a hash of
    ``seed``, the step, the tokens before the state and the number of the sample, so it does not depend on the
    order of rows or on how many states there are. ``keeps``: ``process_rewards`` stay where they were earned, and what a
    continuation is worth is the rest.
    """

    def __init__(self, trainer: Any, estimator: MonteCarloEstimator, *, keeps: bool = True) -> None:
        rollout = trainer.config.actor_rollout_ref.rollout
        self.estimator, self.keeps = estimator, keeps
        self.client = trainer.get_llm_client()
        self.reward_workers = trainer.get_reward_handles()
        self.response_length = int(rollout.response_length)
        self.sampling = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "repetition_penalty": 1.0,
            "logprobs": False,
        }
        self.seeded = rollout.name in SEEDED
        _refuse_other_loops(trainer.train_dataset, rollout.agent.default_agent_loop)
        self.loop = ToolLoop(trainer.config) if rollout.agent.default_agent_loop == TOOL_LOOP else None
        self._runner = asyncio.Runner()
        """One event loop for all steps: tools keep locks and connections of the one that they first ran in."""

    def values(
        self,
        step: int,
        rows: PromptedRollouts,
        fields: Sequence[dict[str, Any]],
        segments: Segments,
        first_state: int,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """(B, T): the value of the state before each segment at the segment's first token, NaN elsewhere.

        verl's tool loop plays the tools anew on the way to a state; where they answer otherwise than they did, it has
        no value. Nor has a trace of several outputs: what rewrote the context is not known. Traces without one of their
        values for these reasons are counted.

        Args:
            fields: per row what the reward function gets beside the tokens.
            first_state: 0 to continue the prompt too, 1 to leave it out.

        Raises:
            RuntimeError: every single request failed.
        """
        rollouts = rows.rollouts
        found = torch.full(rollouts.response_mask.shape, torch.nan)
        continued = [self._can_continue(rows, row, fields[row]) for row in range(len(rows.lengths))]
        wanted = self._wanted(rows, segments, first_state, continued)
        tally = Tally()
        distinct = {state.key: state for state, _, _ in reversed(wanted)}
        states = [distinct[key] for key in dict.fromkeys(state.key for state, _, _ in wanted)]
        means = self._runner.run(self._run(states, step, fields, tally))
        known = dict(zip([state.key for state in states], means, strict=True))
        different = {state.key for state in tally.different}
        for state, row, column in wanted:
            found[row, column] = known[state.key]
            continued[row] &= state.key not in different
        if tally.failures:
            logger.warning("rredcot: %d of %d continuations failed", len(tally.failures), tally.requests)
            if len(tally.failures) == tally.requests:
                raise RuntimeError(f"rredcot: no continuation of {tally.requests} succeeded") from tally.failures[
                    0
                ]
        traces = max(1, rollouts.batch_size)
        return found, {
            "rredcot/monte_carlo/continuations/mean": tally.requests / traces,
            "rredcot/monte_carlo/tokens/mean": tally.tokens / traces,
            "rredcot/monte_carlo/failed/mean": len(tally.failures) / max(1, tally.requests),
            "rredcot/monte_carlo/left_out/mean": share(~torch.tensor(continued, dtype=torch.bool)),
        }

    def _can_continue(self, rows: PromptedRollouts, row: int, fields: Mapping[str, Any]) -> bool:
        """Whether the states of a trace can be brought back."""
        if self.loop is None:
            return _is_one_turn(rows, row)
        return len(rows.outputs_of(row)) == 1 and "raw_prompt" in fields

    def _wanted(
        self, rows: PromptedRollouts, segments: Segments, first_state: int, continued: Sequence[bool]
    ) -> list[tuple[State, int, int]]:
        """The states to continue, each with its row and the column of the token after it."""
        wanted = []
        starts = segments.starts.tolist()
        for row in [row for row, can in enumerate(continued) if can]:
            prompt, response = tuple(rows.prompts[row].tolist()), rows.token_ids[row].tolist()
            mask = rows.rollouts.response_mask[row].tolist()
            group = str(rows.rollouts.group_ids[row])  # equal prompts of two groups may be scored by other data
            for column in starts[row][first_state : int(segments.num_segments[row])]:
                state = State(prompt, tuple(response[:column]), row, tuple(mask[:column]), group)
                wanted.append((state, row, column))
        return wanted

    async def _run(
        self, states: Sequence[State], step: int, fields: Sequence[dict[str, Any]], tally: Tally
    ) -> list[float]:
        gate = asyncio.Semaphore(self.estimator.concurrency)
        total = len(states) * self.estimator.samples
        with tqdm(total=total, desc="rredcot monte_carlo", leave=False, mininterval=5.0) as bar:

            async def one(state: State, sample: int) -> float:
                async with gate:
                    tally.requests += 1
                    try:
                        return await self._reward_of_one(state, sample, step, fields[state.row], tally)
                    except DifferentReplayError:
                        tally.different.add(state)
                        return float("nan")
                    except Exception as error:  # noqa: BLE001  a failed continuation costs its state a sample
                        tally.failures.append(error)
                        return float("nan")
                    finally:
                        bar.update(1)

            rewards = await asyncio.gather(*(one(s, i) for s in states for i in range(self.estimator.samples)))
        table = np.array(rewards, dtype=np.float64).reshape(len(states), self.estimator.samples)
        table[~np.isfinite(table)] = np.nan
        # some samples may have been answered alike by chance
        table[[state in tally.different for state in states]] = np.nan
        count = np.isfinite(table).sum(axis=1)
        return [float(np.nansum(row) / n) if n else float("nan") for row, n in zip(table, count, strict=True)]

    async def _reward_of_one(
        self, state: State, sample: int, step: int, fields: dict[str, Any], tally: Tally
    ) -> float:
        whole = [*state.prompt, *state.prefix]
        seed = request_seed(self.estimator.seed, step, whole, sample)
        left = self.response_length if self.estimator.max_tokens is None else self.estimator.max_tokens

        async def generate(
            ids: Sequence[int], sampling: Mapping[str, Any], media: Mapping[str, Any]
        ) -> TokenOutput:
            nonlocal left
            if left < 1:  # a turn without tokens ends the loop
                return TokenOutput(token_ids=[])
            room = max(1, self.response_length - (len(ids) - len(state.prompt)))
            # later turns: apart from what another state, on whose way they may lie, is continued with
            own = seed if list(ids) == whole else request_seed(seed, step, ids, sample)
            output = await self.client.generate(
                request_id=f"rredcot-{step}-{own}",
                prompt_ids=list(ids),
                sampling_params={
                    **sampling,
                    "max_tokens": min(room, left),
                    **({"seed": own} if self.seeded else {}),
                },
                **media,
            )
            tally.tokens += len(output.token_ids)
            left -= len(output.token_ids)
            return output

        if self.loop is None:
            output = await generate(whole, self.sampling, {})
            data = reward_input(state.prompt, [*state.prefix, *output.token_ids], fields)
        else:
            trace = await self.loop.run(state, fields, dict(self.sampling), generate)
            told = {"__num_turns__": trace.num_turns, "tool_extra_fields": trace.extra_fields}
            data = reward_input(trace.prompt_ids, trace.response_ids, {**fields, **told})
        worker = self.reward_workers[seed % len(self.reward_workers)]
        result = await worker.compute_score.remote(data)
        said = (result.get("reward_extra_info") or {}).get(PROCESS_REWARDS) if self.keeps else None
        return float(result["reward_score"]) - sum(reward for _, reward in parse(said)[0])


def request_seed(seed: int, step: int, ids: Sequence[int], sample: int) -> int:
    """A number in [0, 2³¹) that depends on its arguments only."""
    digest = hashlib.blake2b(repr((seed, step, list(ids), sample)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def reward_input(prompt: Sequence[int], response: Sequence[int], fields: dict[str, Any]) -> DataProto:
    """One rollout as verl's reward workers get it from the agent loop."""
    prompts, responses = torch.tensor([list(prompt)]), torch.tensor([list(response)])
    input_ids = torch.cat([prompts, responses], dim=1)
    batch = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "position_ids": torch.arange(input_ids.shape[1])[None],
    }
    extra = {}
    for name, value in {"__num_turns__": 2, **fields}.items():
        extra[name] = np.empty(1, dtype=object)  # np.array([...]) would unpack a list of messages
        extra[name][0] = value
    return DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=extra)


def _refuse_other_loops(dataset: Any, loop: str) -> None:
    """verl does not store which loop a row was played by, and whether a state has a value must not depend on what follows.

    Raises:
        ValueError: the training data's ``agent_name`` asks for another loop than ``loop``.
    """
    table: Any = getattr(dataset, "dataframe", None)
    asked = table.unique("agent_name") if "agent_name" in getattr(table, "column_names", ()) else []
    if others := sorted({str(name) for name in asked} - {loop}):
        raise ValueError(
            f"algorithm.rredcot.value_estimator=monte_carlo continues traces of default_agent_loop={loop}, and the column "
            f"agent_name of data.train_files asks for {', '.join(others)}; use support, confidence, siblings or environment, or "
            "remove the column"
        )


def _is_one_turn(rows: PromptedRollouts, row: int) -> bool:
    """Whether all of a response is the model's."""
    return bool(rows.rollouts.response_mask[row, : rows.lengths[row]].all())
