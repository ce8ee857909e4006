"""Options reach the trainer, and what cannot work is refused or warned of."""

from __future__ import annotations

import inspect

import pytest
import torch
import verl
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.engine import ProbeEngineMixin
from rredcot_plugin.integrations.verl.settings import read_settings, why_not_in_pass

ACTOR, FSDP = "actor_rollout_ref.actor.", "actor_rollout_ref.actor.fsdp_config."


def verl_config(*overrides: str):
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["algorithm.adv_estimator=rredcot", *overrides])


def test_options_by_plain_override_and_by_hydra_group() -> None:
    plain = verl_config("+algorithm.rredcot.segmenter=newline", "+algorithm.rredcot.lam=0.9")
    assert read_settings(plain).segmenter == "newline"
    assert read_settings(plain).lam == 0.9
    group = verl_config("hydra.searchpath=[pkg://rredcot_plugin.conf]", "+rredcot@algorithm.rredcot=default")
    assert read_settings(group) == read_settings(verl_config())
    assert read_settings(verl_config()).scale == "group_std"
    assert read_settings(verl_config("algorithm.norm_adv_by_std_in_grpo=False")).scale == "none"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+algorithm.rredcot.segmentor=newline", "Did you mean 'segmenter'"),
        ("+algorithm.rredcot.segmenter=paragraf", "unknown segmenter 'paragraf'"),
        ("+algorithm.rredcot.lam=2", "lam=2: expected a number from 0 to 1"),
        (
            "+algorithm.rredcot=lean",
            r"'lean': expected options under their keys.*\+rredcot@algorithm\.rredcot=lean",
        ),
    ],
)
def test_bad_options_stop_the_trainer_before_anything_is_built(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_trainer_cls("sync")(verl_config(override))


class ReadsACritics:
    """An estimator that misspells what it reads."""

    proposes, max_proposals, reads = "nothing", 1, ("critics",)


def test_scores_that_nobody_writes_are_refused_at_the_start() -> None:
    own = f"+algorithm.rredcot.value_estimator='{__name__}:ReadsACritics'"
    with pytest.raises(ValueError, match=r"reads 'critics', which no part .*Did you mean 'critic'\?"):
        get_trainer_cls("sync")(verl_config(own))


def test_the_trainer_over_dataproto_refuses_at_its_start_what_it_cannot_do() -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    with pytest.raises(ValueError, match=r"value_estimator=monte_carlo: .* needs trainer\.use_v1=true"):
        RayPPOTrainer(verl_config("trainer.use_v1=False", "+algorithm.rredcot.value_estimator=monte_carlo"))
    with pytest.raises(TypeError, match="missing"):  # verl's own signature, with any other estimator
        RayPPOTrainer(verl_config("algorithm.adv_estimator=grpo"))


def test_an_unsupported_verl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl, "__version__", "0.8.0")
    with pytest.raises(ValueError, match=r"verl 0.8.0 is not supported.*verl==0.9.1"):
        read_settings(verl_config())


def test_what_the_method_misses_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    calm = verl_config("actor_rollout_ref.rollout.n=8")
    assert calm.actor_rollout_ref.rollout.calculate_log_probs, "verl's default"
    warn_of_pointless(calm, read_settings(calm))
    assert not caplog.text
    unrecorded = "actor_rollout_ref.rollout.calculate_log_probs=False"
    poor = verl_config("actor_rollout_ref.rollout.n=1", unrecorded, "+algorithm.rredcot.segmenter=hybrid")
    warn_of_pointless(poor, read_settings(poor))
    assert "rollout.n=1" in caplog.text
    assert "calculate_log_probs=False" in caplog.text
    blind = verl_config(
        "actor_rollout_ref.rollout.calculate_log_probs=False", "+algorithm.rredcot.segmenter=entropy"
    )
    with pytest.raises(ValueError, match="calculate_log_probs=True"):
        warn_of_pointless(blind, read_settings(blind))


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor_rollout_ref.actor.strategy=megatron", "strategy=megatron"),
        ("actor_rollout_ref.model.use_fused_kernels=True", "use_fused_kernels"),
        (FSDP + "ulysses_sequence_parallel_size=2", FSDP + "ulysses_sequence_parallel_size=2"),
        (ACTOR + "ulysses_sequence_parallel_size=4", ACTOR + "ulysses_sequence_parallel_size=4"),
        ("algorithm.rollout_correction.bypass_mode=True", "bypass_mode"),
        ("trainer.nnodes=2", None),
    ],
)
def test_what_keeps_probes_out_of_the_log_prob_pass(override: str, reason: str | None) -> None:
    found = why_not_in_pass(verl_config(override))
    assert (found is None) if reason is None else (reason in str(found))


def test_algorithm_config_is_never_converted() -> None:
    """AlgoConfig refuses unknown keys, so algorithm.rredcot must stay in the DictConfig; the v1 trainer keeps it."""
    with pytest.raises((TypeError, ValueError)):
        AlgoConfig(rredcot={})
    assert "omega_conf_to_dataclass(self.config.algorithm" not in inspect.getsource(trainer_base)


def test_engines_are_registered_by_vendor_and_extend_verls_own() -> None:
    for backend in ("fsdp", "fsdp2"):
        registered = EngineRegistry._engines["language_model"][backend]
        assert registered["cuda"] is FSDPEngineWithLMHead, "verl's own entry stays"
        assert issubclass(registered[("cuda", "nvidia")], ProbeEngineMixin)
        assert issubclass(registered[("cuda", "nvidia")], FSDPEngineWithLMHead)
    lookup = inspect.getsource(EngineRegistry.get_engine_cls)
    assert lookup.index("vendor_key in registry") < lookup.index("device in registry")
    signature = inspect.signature(FSDPEngineWithLMHead.forward_step)
    assert list(signature.parameters) == ["self", "micro_batch", "loss_function", "forward_only"]
    assert '"model_output"' in inspect.getsource(FSDPEngineWithLMHead.forward_step)


def test_aggregation_goes_by_substring_and_our_names_are_safe() -> None:
    """Names with min, max, sum or total anywhere are reduced that way; ours may only end in one."""
    aggregator = MetricsAggregator()
    assert aggregator._get_aggregation_type("rredcot/terminal/mean") == "min"
    rewards = torch.zeros(4, 9)
    rewards[::2, -1] = 1.0
    rollouts = rr.Rollouts(
        torch.zeros(4, 9, dtype=torch.int64),
        torch.ones(4, 9).bool(),
        rewards,
        [0, 0, 1, 1],
        log_probs=-torch.rand(4, 9),
    )
    config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 3})
    metrics = rr.assign_credit(rollouts, config).metrics
    expected = {"mean": "weighted_avg", "max": "max", "min": "min"}
    for name in metrics:
        assert aggregator._get_aggregation_type(name) == expected[name.rsplit("/", 1)[1]], name
