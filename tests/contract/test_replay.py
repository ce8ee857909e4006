"""Continuations through verl's own tool loop, with the agent recipe's calculator and a server that speaks by a script."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.workers.rollout.replica import TokenOutput

from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.integrations.verl.continuations import Continuations
from rredcot_plugin.integrations.verl.replay import DifferentReplayError, State
from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator
from tests.contract.counting_tools import AGENT, CountingCalculator, build_tokenizer, call
from tests.contract.test_verl_options import verl_config

QUESTION = [{"role": "user", "content": "12 bags of 35 nuts, 48 lost. Left?"}]
FIELDS: dict[str, Any] = {"raw_prompt": QUESTION, "reward_model": {"ground_truth": "372"}, "uid": "a"}
RESPONSE_LENGTH = 120
RIGHT, WRONG = "#### 372", "#### 371"


class Server:
    """Ends the turn at hand as the script has it, and answers by ``answers``, in their order, at last."""

    def __init__(self, tokenizer: Any, answers: list[str], fails: bool = False) -> None:
        self.tokenizer, self.answers, self.fails = tokenizer, list(answers), fails
        self.requests: list[tuple[list[int], dict[str, Any]]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        self.requests.append((list(prompt_ids), sampling_params))
        if self.fails:
            raise RuntimeError("out of memory")
        text = self.tokenizer.decode(prompt_ids)
        told, _, begun = text.rpartition("assistant\n")
        script = [call("12*35"), call("420-48")]
        said = told.count("</tool_call>")
        whole = script[said] if said < len(script) else self.answers.pop(0)
        assert whole.startswith(begun)
        ids = self.tokenizer.encode(whole[len(begun) :] + self.tokenizer.eos_token)
        return TokenOutput(token_ids=ids[: sampling_params.get("max_tokens")], extra_fields={"global_steps": 3})


class Rewards:
    """1 for the right answer at the end; keeps what it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.rows: list[Any] = []
        self.compute_score = SimpleNamespace(remote=self._score)
        self._tokenizer = tokenizer

    async def _score(self, data: Any) -> dict[str, float]:
        self.rows.append(data)
        text = self._tokenizer.decode(data.batch["responses"][0], skip_special_tokens=True)
        return {"reward_score": float(text.endswith(RIGHT))}


@dataclasses.dataclass
class Played:
    """A recorded trace of verl's loop, with what continues it."""

    trace: AgentLoopOutput
    server: Server
    rewards: Rewards
    continuations: Continuations

    def rows(self) -> PromptedRollouts:
        ids, mask = torch.tensor([self.trace.response_ids]), torch.tensor([self.trace.response_mask]).bool()
        rollouts = Rollouts(ids, mask, torch.zeros(ids.shape), ["a"])
        return PromptedRollouts(rollouts, [torch.tensor(self.trace.prompt_ids)], [""], [ids.shape[1]])

    def values(
        self, rows: PromptedRollouts | None = None, fields: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        found, notes = self.continuations.values(
            3, rows or self.rows(), [FIELDS if fields is None else fields], self.segments(), first_state=1
        )
        return found[0], notes

    def columns(self) -> list[int]:
        """Boundaries: the third token of the first call, the second call, the answer."""
        mask = self.trace.response_mask
        return [3, *(i for i in range(1, len(mask)) if mask[i] and not mask[i - 1])]

    def segments(self) -> Segments:
        mask = torch.tensor([self.trace.response_mask]).bool()
        numbers = torch.zeros(mask.shape, dtype=torch.int64)
        for column in self.columns():
            numbers[0, column:] += 1
        return Segments(torch.where(mask, numbers, -1), torch.tensor([len(self.columns()) + 1]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shutil.copy(CHECKPOINT / "config.json", folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def play(
    model: Path, answers: list[str], tool: str = "CountingCalculator", fails: bool = False, **options: Any
) -> Played:
    """A trace of two calls and the right answer, recorded by verl's loop."""
    tools = model / f"{tool}.yaml"
    named = f"tests.contract.counting_tools.{tool}"
    tools.write_text((AGENT / "calculator.yaml").read_text().replace("calculator.Calculator", named))
    config = verl_config(
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tools}",
        f"data.max_response_length={RESPONSE_LENGTH}",
        "data.max_prompt_length=72",
    )
    tokenizer = build_tokenizer()
    server, rewards = Server(tokenizer, answers, fails), Rewards(tokenizer)
    trainer = SimpleNamespace(
        config=config,
        train_dataset=None,
        get_llm_client=lambda: server,
        get_reward_handles=lambda: [rewards],
    )
    continuations = Continuations(trainer, MonteCarloEstimator(concurrency=1, **options))
    assert continuations.loop is not None

    async def record() -> AgentLoopOutput:
        loop = ToolAgentLoop(server_manager=Server(tokenizer, [RIGHT]), **continuations.loop._parts)
        return await loop.run({}, raw_prompt=QUESTION)

    CountingCalculator.calls.clear()
    trace = asyncio.run(record())
    assert CountingCalculator.calls == ["12*35", "420-48"]
    CountingCalculator.calls.clear()
    return Played(trace, server, rewards, continuations)


def test_the_tools_bring_every_state_back_and_its_value_is_the_mean_of_what_follows(model: Path) -> None:
    answers = [RIGHT, WRONG, WRONG, RIGHT, RIGHT, WRONG, RIGHT, RIGHT, RIGHT]
    played = play(model, answers, samples=3)
    values, notes = played.values()
    columns = played.columns()
    assert values[columns].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert torch.isfinite(values).sum() == 3
    prompt, response = played.trace.prompt_ids, played.trace.response_ids
    asked = [ids for ids, _ in played.server.requests]
    firsts = [[*prompt, *response[:column]] for column in columns]
    assert asked[0] == firsts[0] and asked[9] == firsts[1] and asked[15] == firsts[2], "from the state on"
    assert len(asked) == 3 * (3 + 2 + 1), "what was recorded is not generated again"
    assert CountingCalculator.calls == ["12*35", "420-48"] * 9, "the tools are played in every continuation"
    for number, row in enumerate(played.rewards.rows):
        column = columns[number // 3]
        assert row.batch["prompts"][0].tolist() == prompt
        assert row.batch["responses"][0, :column].tolist() == response[:column]
    assert notes["rredcot/monte_carlo/continuations/mean"] == 9
    mask = torch.tensor(played.trace.response_mask)
    own = sum(int(mask[column:].sum()) for column in columns)
    assert notes["rredcot/monte_carlo/tokens/mean"] == 3 * own, "all answers are of one length, and so all traces"
    assert notes["rredcot/monte_carlo/left_out/mean"] == notes["rredcot/monte_carlo/failed/mean"] == 0


def test_a_reward_sees_what_the_loop_hands_over(model: Path) -> None:
    played = play(model, [RIGHT] * 3, samples=1)
    played.values()
    for row in played.rewards.rows:
        told = row.non_tensor_batch
        assert told["__num_turns__"][0] == played.trace.num_turns == 6
        assert told["tool_extra_fields"][0]["called"] == 2
        assert told["tool_extra_fields"][0]["tool_rewards"] == played.trace.extra_fields["tool_rewards"]
        assert told["reward_model"][0] == {"ground_truth": "372"}
    assert len({sampling["seed"] for _, sampling in played.server.requests}) == 6, "a seed for each request"


def test_max_tokens_is_for_all_turns_of_a_continuation(model: Path) -> None:
    played = play(model, [RIGHT] * 3, samples=1, max_tokens=10)
    values, notes = played.values()
    assert notes["rredcot/monte_carlo/tokens/mean"] <= 3 * 10
    assert torch.isfinite(values[played.columns()]).all()
    unbounded = play(model, [RIGHT] * 3, samples=1)
    assert unbounded.values()[1]["rredcot/monte_carlo/tokens/mean"] > 3 * 10
    longest = [len(ids) + sampling["max_tokens"] for ids, sampling in unbounded.server.requests]
    assert set(longest) == {len(unbounded.trace.prompt_ids) + RESPONSE_LENGTH}


def test_a_tool_that_answers_otherwise_leaves_its_states_out_and_is_named(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played = play(model, [RIGHT] * 9, tool="UnsteadyCalculator", samples=3)
    CountingCalculator.calls.append("another call before")
    values, notes = played.values()
    first, *later = played.columns()
    assert torch.isfinite(values[first]), "no tool was called before"
    assert torch.isnan(values[later]).all()
    assert notes["rredcot/monte_carlo/left_out/mean"] == 1
    assert notes["rredcot/monte_carlo/failed/mean"] == 0
    (line,) = [record.getMessage() for record in caplog.records if "rredcot" in record.getMessage()]
    assert '"12*35"' in line and r"was answered 'tool\n420 1" in line and "use siblings or environment" in line
    played.values()
    assert sum("rredcot" in record.getMessage() for record in caplog.records) == 1, "said once"


def test_a_trace_of_another_loop_has_no_values(model: Path) -> None:
    played = play(model, [RIGHT] * 9, samples=1)
    rows = played.rows()
    other = dataclasses.replace(rows, prompts=[torch.tensor([7, *played.trace.prompt_ids])])
    length = rows.lengths[0]
    halves = [Output(rows.prompts[0], 0, 9), Output(rows.prompts[0], 10, length - 10, 1)]
    for unknown, fields in ((other, FIELDS), (dataclasses.replace(rows, outputs=[halves]), FIELDS), (rows, {})):
        values, notes = played.values(unknown, fields)
        assert torch.isnan(values).all()
        assert notes["rredcot/monte_carlo/left_out/mean"] == 1
    assert not played.server.requests


def test_a_loop_that_ends_before_the_state_has_not_brought_it_back(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played = play(model, [])
    column = played.columns()[1]
    no_call = [played.trace.prompt_ids[0], *played.trace.response_ids[1:column]]
    mask = tuple(map(bool, played.trace.response_mask[:column]))
    state = State(tuple(played.trace.prompt_ids), tuple(no_call), 0, mask)
    loop = played.continuations.loop
    assert loop is not None
    with pytest.raises(DifferentReplayError):
        asyncio.run(loop.run(state, FIELDS, {}, AsyncMock()))
    assert "the loop ended after" in caplog.text
    assert not CountingCalculator.calls


def test_a_server_that_fails_is_counted(model: Path) -> None:
    played = play(model, [], fails=True, samples=1)
    with pytest.raises(RuntimeError, match="no continuation of 3 succeeded") as caught:
        played.values()
    assert "out of memory" in str(caught.value.__cause__)
    once = play(model, [RIGHT, RIGHT], samples=1)  # the script has no third answer: that request fails
    values, notes = once.values()
    assert notes["rredcot/monte_carlo/failed/mean"] == pytest.approx(1 / 3)
    assert values[once.columns()].isnan().tolist() == [False, False, True]
