"""What ``rredcot_ppo``, ``red`` and the estimators beside probes rely on in verl, and that they give verl's numbers."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import need_critic
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.workers.rollout.llm_server import LLMServerClient

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.batch import onto_unmasked
from rredcot_plugin.integrations.verl.settings import (
    check_estimator,
    read_settings,
    switch_on_critic,
)
from rredcot_plugin.integrations.verl.tokens import fit_width, rewards_at_ends
from rredcot_plugin.options import ESTIMATOR_DEFAULTS
from tests.contract.test_verl_options import verl_config

GROUP = "hydra.searchpath=[pkg://rredcot_plugin.conf]"


def ppo_config(*overrides: str):
    return verl_config("algorithm.adv_estimator=rredcot_ppo", *overrides)


def red_config(*overrides: str):
    return verl_config("algorithm.adv_estimator=red", "+algorithm.rredcot.value_kwargs.path=/model", *overrides)


# ---- numbers


@st.composite
def scored_batches(draw: st.DrawFn) -> tuple[rr.Rollouts, torch.Tensor]:
    """Right-padded responses with masked tokens inside, dense rewards as penalties, and a critic's values."""
    B, T, seed = draw(st.integers(1, 5)), draw(st.integers(3, 12)), draw(st.integers(0, 9999))
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, T + 1, (B, 1), generator=random)
    mask = (torch.arange(T)[None] < lengths) & (
        (torch.rand(B, T, generator=random) < 0.8) | (torch.arange(T) == 0)
    )
    mask[:, 1] = True
    penalties = torch.where(mask, -0.1 * torch.rand(B, T, generator=random), 0.0)
    last = torch.where(mask, torch.arange(T), 0).amax(dim=1, keepdim=True)
    outcome = torch.zeros(B, T).scatter(1, last, torch.randint(0, 2, (B, 1), generator=random).float())
    values = torch.randn(B, T, generator=random)
    rollouts = rr.Rollouts(
        torch.zeros(B, T, dtype=torch.int64),
        mask,
        outcome + penalties,
        list(range(B)),
        penalties=penalties,
        token_scores={"critic": values},
    )
    return rollouts, values


@settings(deadline=None, max_examples=60, derandomize=True)
@given(scored_batches(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_segment_a_token_is_verls_gae(batch: tuple[rr.Rollouts, torch.Tensor], lam: float) -> None:
    rollouts, values = batch
    mask = rollouts.response_mask.float()
    advantages, returns = core_algos.compute_gae_advantage_return(rollouts.rewards, values, mask, 1.0, lam)
    options = {"tokens": 1, "max_segments": 10_000, "answer_markers": []}
    config = rr.RRedCoTConfig(
        **ESTIMATOR_DEFAULTS["rredcot_ppo"], segmenter="fixed", segmenter_kwargs=options, lam=lam
    )
    credit = rr.assign_credit(rollouts, config)
    torch.testing.assert_close(credit.advantages, advantages * mask, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(credit.returns, returns * mask, atol=1e-5, rtol=1e-5)
    on_the_way = rr.assign_credit(dataclasses.replace(rollouts, penalties=None), config)
    torch.testing.assert_close(on_the_way.advantages, credit.advantages, atol=1e-5, rtol=1e-5)


def test_rewards_stand_on_the_last_token_of_their_segment() -> None:
    ids = torch.tensor([[0, 0, -1, 0, 1, -1], [-1, 0, 1, 2, 2, -1], [-1] * 6])
    segments = rr.Segments(ids, torch.tensor([2, 3, 0]))
    credit = rr.Credit(torch.zeros(3, 6), torch.zeros(3, 6), segments, *torch.zeros(3, 3, 3))
    credit.segment_rewards[:] = torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]])
    expected = [[0, 0, 0, 1, 2, 0], [0, 3, 4, 0, 5, 0], [0] * 6]
    assert rewards_at_ends(credit).tolist() == expected


def test_the_reward_of_a_masked_last_token_moves_to_the_last_unmasked_one() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    rewards = torch.tensor([[0.0, 0.5, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    assert onto_unmasked(rewards, mask).tolist() == [[0, 1.5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_rewards_of_a_tools_answer_go_to_the_turn_that_asked_for_it() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 0]]).bool()
    rewards = torch.tensor([[8.0, 0.0, 0.0, 0.25, 0.5, 0.0, 1.0]])
    assert onto_unmasked(rewards, mask).tolist() == [[0, 8, 0.75, 0, 0, 1, 0]]


def test_columns_are_cut_or_filled() -> None:
    x = torch.ones(1, 3)
    assert fit_width(x, torch.zeros(1, 2)).tolist() == [[1, 1]]
    assert fit_width(x, torch.zeros(1, 5)).tolist() == [[1, 1, 1, 0, 0]]


# ---- settings


def test_each_name_has_its_defaults_and_a_hydra_group_with_the_same() -> None:
    assert read_settings(ppo_config()).value_estimator == "critic"
    assert read_settings(ppo_config()).scale == "whiten"
    assert read_settings(red_config()).segmenter_kwargs["tokens"] == 1
    assert read_settings(ppo_config(GROUP, "+rredcot@algorithm.rredcot=ppo")) == read_settings(ppo_config())
    from_group = verl_config(
        "algorithm.adv_estimator=red",
        GROUP,
        "+rredcot@algorithm.rredcot=red",
        "+algorithm.rredcot.value_kwargs.path=/model",
    )
    assert read_settings(from_group) == read_settings(red_config())


def test_red_takes_the_model_that_verl_rewards_with() -> None:
    config = verl_config(
        "algorithm.adv_estimator=red", "reward.reward_model.enable=True", "reward.reward_model.model_path=/rm"
    )
    assert read_settings(config).value_kwargs["path"] == "/rm"


@pytest.mark.parametrize("name", ["rredcot_ppo", "red"])
def test_a_name_keeps_what_it_promises(name: str) -> None:
    config = verl_config(f"algorithm.adv_estimator={name}", "+algorithm.rredcot.value_estimator=support")
    with pytest.raises(ValueError, match=f"adv_estimator={name} takes its values from"):
        read_settings(config)


def test_rredcot_ppo_switches_the_critic_on() -> None:
    config = ppo_config()
    with pytest.warns(UserWarning, match="Disabled critic"):
        assert not need_critic(config), "verl gives an estimator it does not know no critic"
    switch_on_critic(config)
    assert need_critic(config)
    with pytest.raises(ValueError, match=r"critic\.enable=False"):
        switch_on_critic(ppo_config("critic.enable=False"))
    other = verl_config()
    switch_on_critic(other)
    assert other.critic.enable is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+algorithm.rredcot.value_estimator=monte_carlo", "reward.reward_model.enable=True"],
            "enable_resource_pool",
        ),
        (
            [
                "+algorithm.rredcot.value_estimator=monte_carlo",
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
                "actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml",
            ],
            r"value_estimator=monte_carlo .*agent_loop_config_path=loops\.yaml may put others.* use support",
        ),
        (
            [
                "+algorithm.rredcot.value_estimator=monte_carlo",
                "actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml",
            ],
            r"value_estimator=monte_carlo .*agent_loop_config_path=loops\.yaml may put others.* use support",
        ),
        (
            [
                "+algorithm.rredcot.value_estimator=mixture",
                "+algorithm.rredcot.value_kwargs.estimators=[support,monte_carlo]",
                "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
            ],
            r"value_estimator=mixture .*single_turn_agent nothing says which rows .*tool_config_path=tools\.yaml",
        ),
        (
            [
                "+algorithm.rredcot.value_estimator=monte_carlo",
                "actor_rollout_ref.rollout.agent.default_agent_loop=my_loop",
            ],
            "default_agent_loop=my_loop is another loop, whose states cannot be brought back",
        ),
        (["+algorithm.rredcot.value_estimator=gradient", "actor_rollout_ref.actor.strategy=megatron"], "megatron"),
        (
            ["+algorithm.rredcot.baseline=token", "actor_rollout_ref.model.use_fused_kernels=True"],
            r"algorithm\.rredcot\.baseline=token .*use_fused_kernels=True.* or use a baseline .*least_variance",
        ),
        (
            ["+algorithm.rredcot.baseline=token", "algorithm.rollout_correction.bypass_mode=True"],
            r"algorithm\.rredcot\.baseline=token .*bypass_mode=True",
        ),
        (
            [
                "+algorithm.rredcot.baseline='rredcot_plugin.baselines:TokenBaseline'",
                "actor_rollout_ref.actor.strategy=megatron",
            ],
            r"algorithm\.rredcot\.baseline=.*TokenBaseline.*strategy=megatron",
        ),
    ],
)
def test_what_an_estimator_or_baseline_cannot_read_is_said_at_the_start(
    overrides: list[str], message: str
) -> None:
    config = verl_config(*overrides)
    with pytest.raises(ValueError, match=message):
        check_estimator(config, read_settings(config))


def test_all_estimators_for_agents_go_with_the_tool_loop() -> None:
    config = verl_config("+algorithm.rredcot.value_estimator=monte_carlo")
    check_estimator(config, read_settings(config))
    tools = "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent"
    for estimator in ("support", "siblings", "environment", "monte_carlo"):
        config = verl_config(f"+algorithm.rredcot.value_estimator={estimator}", tools)
        check_estimator(config, read_settings(config))


def test_a_baseline_without_needs_runs_with_any_engine() -> None:
    config = verl_config("+algorithm.rredcot.baseline=trace", "actor_rollout_ref.model.use_fused_kernels=True")
    check_estimator(config, read_settings(config))
    plain = verl_config("+algorithm.rredcot.baseline=token")
    check_estimator(plain, read_settings(plain))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+algorithm.rredcot.value_estimator=own_ratio"], "looks at the outcome of the very trace"),
        (
            [
                "+algorithm.rredcot.value_estimator=mixture",
                "+algorithm.rredcot.value_kwargs.estimators=[attention]",
            ],
            "looks at the outcome of the very trace",
        ),
        (["+algorithm.rredcot.value_estimator=reward_model"], "the outcome comes from a reward function"),
    ],
)
def test_what_is_biased_or_on_another_scale_is_warned_of(
    overrides: list[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = verl_config("actor_rollout_ref.rollout.n=8", *overrides)
    warn_of_pointless(config, read_settings(config))
    assert message in caplog.text


# ---- facts of verl


def test_sampling_ends_before_the_batch_is_balanced_and_hands_out_the_batch_first() -> None:
    source = inspect.getsource(PPOTrainer._step_once)
    order = [
        "self.replay_buffer.sample(",
        "self.on_sample_end()",
        "self._balance_batch(",
        "self._compute_old_log_prob(",
    ]
    places = [source.index(text) for text in order]
    assert places == sorted(places)
    assert "batch, off_policy_metrics = self.replay_buffer.sample(" in source
    assert "on_sample_end" in PPOTrainerSeparateAsync.__dict__, "a trainer of its own servers has the hook too"


def test_the_critics_values_are_those_before_each_token_and_come_before_advantages() -> None:
    source = inspect.getsource(PPOTrainer._step_once)
    assert source.index("self._compute_values(") < source.index("self._compute_advantage(")
    assert "response_from_nested" in inspect.getsource(PPOTrainer._compute_values)


def test_servers_and_reward_workers_take_what_continuations_send() -> None:
    parameters = inspect.signature(
        LLMServerClient.generate.__wrapped__
        if hasattr(LLMServerClient.generate, "__wrapped__")
        else LLMServerClient.generate
    ).parameters
    assert {"request_id", "prompt_ids", "sampling_params"} <= set(parameters)
    assert {"get_llm_client", "get_reward_handles"} <= set(vars(PPOTrainer))
    assert list(inspect.signature(RewardLoopWorker.compute_score).parameters) == ["self", "data"]
