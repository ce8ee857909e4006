"""Which part of a response earned what: what reward functions and agents say reaches the tokens that earned it."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rredcot_plugin.adapter.process_rewards import FIELD
from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.integrations.openrlhf.earned import TOLD, TURNS, moves_told, shown_by, take_told
from rredcot_plugin.integrations.openrlhf.rows import places_of, read_rows
from rredcot_plugin.integrations.openrlhf.settings import read_settings
from rredcot_plugin.integrations.openrlhf.step import Crediter
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.tiny import CHECKPOINT
from tests.openrlhf.running import numbers, run
from tests.openrlhf.test_runs import dumped

openrlhf_cpu.activate()

REWARDS = """
import json
import torch
from rredcot_plugin.demo.reward import compute_score
END = "<|im_end|>"
def reward_func(queries, prompts, labels):
    said, scores = [], []
    for query, prompt, label in zip(queries, prompts, labels):
        known, response = json.loads(label), query[len(prompt):].split(END)[0]
        lines = [place + 1 for place, letter in enumerate(response) if letter == "\\n"]
        score = compute_score(known["source"], response, known["answer"])["score"]
        scores.append(score + 0.125 * len(lines))
        said.append([[end, 0.125] for end in lines])
    found = torch.tensor(scores)
    return {"rewards": found, "scores": found, "extra_logs": {}, "process_rewards": said}
"""


@pytest.mark.parametrize("estimator", ["rredcot", pytest.param("group_norm", marks=pytest.mark.nightly)])
def test_lines_that_a_reward_function_names_keep_what_they_earned(tmp_path: Path, estimator: str) -> None:
    """OpenRLHF's own estimators take the sum and leave the rest alone."""
    (tmp_path / "reward.py").write_text(REWARDS)
    words = ["--algo.advantage.estimator", estimator, "--reward.remote_url", str(tmp_path / "reward.py")]
    if estimator == "rredcot":
        words += ["--algo.rredcot.dump_dir", str(tmp_path / "dumps"), "--algo.rredcot.segmenter", "newline"]
    log = run(tmp_path, *words, "--data.max_samples", "8")
    assert len(numbers(log, "policy_loss")) == 1
    if estimator == "group_norm":
        return
    traces = dumped(tmp_path, "1")
    lines = [sum(segment["text"].endswith("\n") for segment in trace["segments"]) for trace in traces]
    assert sum(lines) > len(traces)
    (moved,) = numbers(log, "rredcot/credit/process_rewards/mean")
    assert moved == pytest.approx(0.125 * sum(lines) / len(lines), abs=1e-3)
    assert numbers(log, "rredcot/fallback/process_rewards/mean") == [0.0]
    for trace in traces:
        assert sum(segment["reward"] for segment in trace["segments"]) == pytest.approx(trace["reward"], abs=1e-3)


@pytest.fixture(scope="module")
def host() -> Any:
    return importlib.import_module("openrlhf.trainer.ppo_utils.experience")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


def response_of(tokenizer: Any, texts: list[str], **logs: Any) -> dict[str, Any]:
    """What an executor returns of the prompt "Q", with each even text said by the model and the others by an environment."""
    tokens, ranges = tokenizer("Q")["input_ids"], []
    for number, text in enumerate(texts):
        begin = len(tokens)
        tokens = tokens + tokenizer(text)["input_ids"]
        if number % 2 == 0:
            ranges.append((begin, len(tokens)))
    more = {"rollout_log_probs": None, "reward": 1.0, "scores": 1.0, "prompt": "Q", "label": "3"}
    return {"observation_tokens": tokens, "action_ranges": ranges, "extra_logs": {"acc": 1.0, **logs}, **more}


def moved(tokenizer: Any, host: Any, responses: list[dict[str, Any]]) -> tuple[torch.Tensor | None, int, Any]:
    """What is to be added to the rewards of these responses, batched as OpenRLHF does it, and the batch."""
    samples = importlib.import_module("rredcot_plugin.integrations.openrlhf.samples")
    maker = samples.RRedCoTSamplesGenerator.__new__(samples.RRedCoTSamplesGenerator)
    made = [maker._process_response_into_experience(response, max_len=100) for response in responses]
    for number, one in enumerate(made):
        one.index = [number]
    batch = host.Experience.concat_experiences(made, 0)
    places = places_of([batch])
    told = take_told([batch], places)
    table = TokenBytes.from_tokenizer(tokenizer)
    return (*moves_told(read_rows([batch], places, 1), places, told, shown_by(table)), batch)


def test_what_is_told_of_characters_and_of_turns_goes_to_their_last_tokens(host: Any, tokenizer: Any) -> None:
    """The tiny tokenizer has one token for each of these characters."""
    end = tokenizer.eos_token
    first = response_of(tokenizer, [f"a\nb{end}", f"ab{end}", "cc"], **{TURNS: [[5, 0.25], [10, 0.5]]})
    second = response_of(tokenizer, [f"a\nbc{end}"], **{TOLD: json.dumps([[2, 0.5], [4, 0.125]])})
    added, unread, batch = moved(tokenizer, host, [first, second, response_of(tokenizer, ["a"])])
    assert unread == 0
    assert added is not None and added.tolist() == [
        [0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, -0.25],
        [0.0, 0.5, 0.0, 0.125, -0.625, 0.0, 0.0, 0.0, 0.0],
        [0.0] * 9,
    ]
    assert set(batch.info) == {"acc", "reward", "score", "response_clip_ratio"}  # numbers, which OpenRLHF logs


def test_special_tokens_are_characters_of_what_openrlhf_decodes(host: Any, tokenizer: Any) -> None:
    end = tokenizer.eos_token
    added, unread, _ = moved(
        tokenizer, host, [response_of(tokenizer, [f"{end}abc"], **{TOLD: [[len(end) + 2, 0.5]]})]
    )
    assert unread == 0
    assert added is not None and added.tolist() == [[0.0, 0.0, 0.5, -0.5]]


@pytest.mark.parametrize("said", ["nonsense", 3, [["x", 1.0]], [[1, math.nan]], {"a": 1}])
def test_nonsense_moves_nothing_and_is_counted(host: Any, tokenizer: Any, said: Any) -> None:
    added, unread, _ = moved(tokenizer, host, [response_of(tokenizer, ["abc"], **{TOLD: said})])
    assert (added, unread) == (None, 1)


def test_what_lines_earned_is_no_part_of_what_an_answer_is_worth(host: Any, tokenizer: Any) -> None:
    """As in verl, probes ask for the answers that were rewarded as answers."""
    samples = importlib.import_module("rredcot_plugin.integrations.openrlhf.samples")
    maker = samples.RRedCoTSamplesGenerator.__new__(samples.RRedCoTSamplesGenerator)
    made = []
    for number, answer in enumerate("9979"):
        given = response_of(tokenizer, [f"1+2=3\n#### {answer}{tokenizer.eos_token}"], **{TOLD: [[6, 0.5]]})
        given["reward"], given["label"] = 0.5 + (answer == "7"), "7"
        made.append(maker._process_response_into_experience(given, max_len=100))
        made[-1].index = [number]
    crediter = Crediter(read_settings("rredcot", {}), tokenizer, 4)
    step = crediter.plan([host.Experience.concat_experiences(made, 0)])
    asked = {float(utility) for own in step.plan.proposals.values() for utility in own.utility[own.valid]}
    assert asked == {1.0}
    assert step.rows.rollouts.outcomes.tolist() == [0.5, 0.5, 1.5, 0.5]


def test_of_a_reward_model_s_reward_nothing_was_told(host: Any, tokenizer: Any) -> None:
    given = response_of(tokenizer, ["abc"], **{TOLD: [[1, 0.5]]}) | {"reward": None}
    added, unread, batch = moved(tokenizer, host, [given])
    assert (added, unread) == (None, 0)
    assert not [name for name in batch.info if name.startswith("rredcot")]


def test_executors_keep_what_openrlhf_leaves_out(tokenizer: Any) -> None:
    agent = importlib.import_module("rredcot_plugin.integrations.openrlhf.agent")
    own = agent.host.SingleTurnAgentExecutor("http://nowhere")
    assert isinstance(own, agent.RRedCoTSingleTurnAgentExecutor)

    async def generate(*unused: Any, **also: Any) -> Any:
        output = SimpleNamespace(
            token_ids=tokenizer("ab")["input_ids"], text="ab", finish_reason="stop", logprobs=None
        )
        return SimpleNamespace(outputs=[output])

    def answered(found: dict[str, Any]) -> dict[str, Any]:
        own.reward_func = lambda queries, prompts, labels: found
        params = SimpleNamespace(max_tokens=8, logprobs=None)
        engine = SimpleNamespace(generate=generate)
        result: dict[str, Any] = asyncio.run(own.execute("Q", "3", params, 64, tokenizer, engine))
        return result

    rewards = {"rewards": torch.ones(1), "extra_logs": {"acc": torch.ones(1)}}
    told = answered({**rewards, FIELD: [[[1, 0.5]]]})["extra_logs"]
    assert told == {"acc": torch.ones(1), TOLD: [[1, 0.5]]}
    assert answered({**rewards, FIELD: "[[1, 0.5]]"})["extra_logs"][TOLD] == "[[1, 0.5]]"
    assert answered(rewards)["extra_logs"] == {"acc": torch.ones(1)}


def test_an_agent_may_pay_every_turn_with_the_same_tensor(tokenizer: Any) -> None:
    """OpenRLHF reads a turn's reward at once."""
    agent = importlib.import_module("rredcot_plugin.integrations.openrlhf.agent")

    class Agent(agent.host.AgentInstanceBase):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.turn, self.reward = 0, torch.zeros(1)

        async def step(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
            self.turn += 1
            paid = self.reward.fill_(0.25 * self.turn)
            return {"rewards": paid, "environment_feedback": "x", "done": self.turn == 2}

    async def generate(*unused: Any, **also: Any) -> Any:
        output = SimpleNamespace(token_ids=tokenizer("ab")["input_ids"], text="ab", finish_reason="stop")
        return SimpleNamespace(outputs=[output])

    params, engine = SimpleNamespace(max_tokens=8, logprobs=None), SimpleNamespace(generate=generate)
    found = asyncio.run(agent.host.MultiTurnAgentExecutor(Agent).execute("Q", "3", params, 64, tokenizer, engine))
    assert found["reward"] == 0.75
    assert [paid for _, paid in found["extra_logs"][TURNS]] == [0.25, 0.5]
