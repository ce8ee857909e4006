"""Monte-Carlo continuations with a rollout server made of a few lines (the real ones: tests/e2e)."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.continuations import Continuations, request_seed
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator


class Server:
    """Continues with one token, which is 1 when the prefix and seed say so; counts what runs at once."""

    def __init__(self, fails: bool = False) -> None:
        self.requests: list[tuple[tuple[int, ...], dict]] = []
        self.running = self.most = 0
        self.fails = fails

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if self.fails:
            raise RuntimeError("out of memory")
        self.requests.append((tuple(prompt_ids), sampling_params))
        return SimpleNamespace(token_ids=[len(self.requests) % 2])


class Rewards:
    """Scores a response by its last token, through an attribute that looks like a Ray method."""

    class compute_score:  # noqa: N801
        @staticmethod
        async def remote(data):
            assert data.non_tensor_batch["reward_model"][0] == {"ground_truth": "4"}
            return {"reward_score": float(data.batch["responses"][0, -1])}


def trainer(server: Server, name: str = "hf_cpu") -> SimpleNamespace:
    agent = SimpleNamespace(default_agent_loop="single_turn_agent")
    rollout = SimpleNamespace(name=name, agent=agent, response_length=8, temperature=1.0, top_p=1.0, top_k=-1)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return SimpleNamespace(
        config=config,
        train_dataset=None,
        get_llm_client=lambda: server,
        get_reward_handles=lambda: [Rewards()],
    )


def rows(mask_one_token: bool = False) -> tuple[PromptedRollouts, Segments]:
    """Two responses to one prompt with the same first segment; 2 and 3 segments of two tokens."""
    ids = torch.tensor([[1, 2, 3, 4, 0, 0], [1, 2, 5, 6, 7, 8]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    if mask_one_token:
        mask[1, 2] = False
    rollouts = Rollouts(ids, mask, torch.zeros(2, 6), ["a", "a"])
    numbers = torch.tensor([[0, 0, 1, 1, -1, -1], [0, 0, 1, 1, 2, 2]])
    segments = Segments(torch.where(mask, numbers, -1), torch.tensor([2, 3]))
    return PromptedRollouts(rollouts, [torch.tensor([9, 9])] * 2, ["", ""], [4, 6]), segments


FIELDS = [{"reward_model": {"ground_truth": "4"}}] * 2


def run(server: Server, **options):
    continuations = Continuations(trainer(server), MonteCarloEstimator(**options))
    step_rows, segments = rows()
    return continuations.values(3, step_rows, FIELDS, segments, first_state=1)


def test_equal_prefixes_are_continued_once_and_shared() -> None:
    server = Server()
    found, notes = run(server, samples=4)
    distinct = {prompt for prompt, _ in server.requests}
    assert distinct == {(9, 9, 1, 2), (9, 9, 1, 2, 5, 6)}
    assert notes["rredcot/monte_carlo/continuations/mean"] == 8 / 2
    assert notes["rredcot/monte_carlo/tokens/mean"] == 8 / 2
    assert found[0, 2] == found[1, 2]
    assert 0 <= found[1, 4] <= 1
    assert torch.isfinite(found).sum() == 3, "a number at the first token behind each boundary only"


def test_no_more_than_concurrency_requests_run_at_once() -> None:
    server = Server()
    run(server, samples=8, concurrency=3)
    assert server.most == 3


def test_requests_are_seeded_and_bounded() -> None:
    server = Server()
    run(server, samples=2, max_tokens=5)
    limits = {len(prompt) - 2: sampling["max_tokens"] for prompt, sampling in server.requests}
    assert limits == {2: 5, 4: 4}, "what the response had left, and never more than max_tokens"
    seeds = {sampling["seed"] for _, sampling in server.requests}
    assert len(seeds) == 4
    assert request_seed(0, 3, [9, 9, 1, 2], 0) in seeds
    assert request_seed(1, 3, [9, 9, 1, 2], 0) not in seeds


def test_an_engine_without_seeds_is_not_given_one() -> None:
    server = Server()
    continuations = Continuations(trainer(server, "sglang"), MonteCarloEstimator(samples=1))
    step_rows, segments = rows()
    continuations.values(3, step_rows, FIELDS, segments, first_state=0)
    assert all("seed" not in sampling for _, sampling in server.requests)


def test_traces_with_tool_output_have_no_values() -> None:
    step_rows, segments = rows(mask_one_token=True)
    found, notes = Continuations(trainer(Server()), MonteCarloEstimator(samples=1)).values(
        3, step_rows, FIELDS, segments, first_state=1
    )
    assert notes["rredcot/monte_carlo/left_out/mean"] == 1 / 2
    assert torch.isnan(found[1]).all()
    assert torch.isfinite(found[0, 2])


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        ({"prompt": ["a", "b"]}, False),
        ({"agent_name": ["single_turn_agent"] * 2}, False),
        ({"agent_name": ["my_loop", "single_turn_agent"]}, True),
    ],
)
def test_data_that_ask_for_another_loop_are_refused(columns: dict[str, list[str]], refused: bool) -> None:
    """verl stores no row's loop; and whether a state has a value must not tell that a call follows."""
    given = trainer(Server())
    given.train_dataset = SimpleNamespace(dataframe=Dataset.from_dict(columns))
    with (
        pytest.raises(ValueError, match=r"agent_name of data\.train_files asks for my_loop; use")
        if refused
        else nullcontext()
    ):
        Continuations(given, MonteCarloEstimator(samples=1))


def test_equal_prompts_of_two_groups_are_scored_by_their_own_data() -> None:
    async def score(data):
        return {"reward_score": float(data.non_tensor_batch["reward_model"][0]["ground_truth"])}

    truths = SimpleNamespace(compute_score=SimpleNamespace(remote=score))
    step_rows, segments = rows()
    ids = torch.tensor([[1, 2, 3, 4, 0, 0], [1, 2, 3, 4, 7, 8]])
    rollouts = dataclasses.replace(step_rows.rollouts, token_ids=ids, group_ids=["a", "b"])
    given: Any = trainer(Server())
    given.get_reward_handles = lambda: [truths]
    fields = [{"reward_model": {"ground_truth": truth}} for truth in ("0", "1")]
    found, _ = Continuations(given, MonteCarloEstimator(samples=1)).values(
        3, dataclasses.replace(step_rows, rollouts=rollouts), fields, segments, first_state=1
    )
    assert found[:, 2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("keeps", [True, False])
def test_what_stays_on_single_lines_is_no_part_of_what_a_state_is_worth(keeps: bool) -> None:
    """A continuation's score holds the rewards of its lines too, those of the lines before the state among them."""

    class Telling(Rewards):
        @staticmethod
        async def remote(data):
            found = await Rewards.compute_score.remote(data)
            return {**found, "reward_extra_info": {"process_rewards": "[[1, 0.25], [2, 0.5], [3, null]]"}}

        compute_score = SimpleNamespace(remote=remote)

    telling = trainer(Server())
    telling.get_reward_handles = lambda: [Telling()]
    step_rows, segments = rows()
    found, _ = Continuations(telling, MonteCarloEstimator(samples=4), keeps=keeps).values(
        3, step_rows, FIELDS, segments, first_state=1
    )
    plain, _ = run(Server(), samples=4)
    assert torch.allclose(found, plain - (0.75 if keeps else 0.0), equal_nan=True)


def test_a_server_that_fails_every_time_stops_the_run() -> None:
    with pytest.raises(RuntimeError, match="no continuation of 4 succeeded") as caught:
        run(Server(fails=True), samples=2)
    assert "out of memory" in str(caught.value.__cause__)
