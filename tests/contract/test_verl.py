"""Facts of the installed verl that the plugin stands on. A new verl that breaks one is named here first."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import verl
from hypothesis import given, settings
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import MetricsAggregator, compute_advantage_for_multi_trajectories
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl import SUPPORTED_VERL
from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.engine import ProbeEngineMixin
from rredcot_plugin.integrations.verl.estimator import compute_rredcot_advantage, credit_step
from rredcot_plugin.integrations.verl.settings import read_settings, why_not_in_pass
from rredcot_plugin.integrations.verl.trainer import MODES, RRedCoTTrainerMixin, wrap_trainers
from tests.unit.reference import batches


def python(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=300
    )


def test_version() -> None:
    assert verl.__version__ == SUPPORTED_VERL


# ---- loading


def test_entry_points_are_imported_and_lazy() -> None:
    code = (
        "import sys, verl\n"
        "print('rredcot_plugin.integrations.verl' in sys.modules,"
        " 'verl.trainer.ppo.v1.trainer_base' in sys.modules, 'rredcot_plugin.integrations.verl.trainer' in sys.modules)"
    )
    assert python(code).stdout.split() == ["True", "False", "False"]


def test_plugins_can_be_switched_off() -> None:
    code = (
        "import sys, verl\n"
        "from verl.trainer.ppo.v1 import trainer_base as t\n"
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as r\n"
        "print('rredcot' in r, [c.__module__ for c in t.TRAINER_REGISTRY.values()],"
        " any(m.startswith('rredcot_plugin') for m in sys.modules))"
    )
    out = python(code, VERL_USE_EXTERNAL_PLUGINS="none").stdout.strip()
    assert out.startswith("False [")
    assert "rredcot" not in out
    assert out.endswith("False")


def test_verl_swallows_a_failing_plugin_so_ours_is_loud() -> None:
    """verl logs a plugin's failure at DEBUG; our registration logs it at ERROR with the cause."""
    code = (
        "import sys, types, logging\n"
        "broken = types.ModuleType('rredcot_plugin.integrations.lazy')\n"
        "def install(*a, **k): raise RuntimeError('the cause')\n"
        "broken.install = install\n"
        "sys.modules['rredcot_plugin.integrations.lazy'] = broken\n"
        "import rredcot_plugin.integrations as i; i.lazy = broken\n"
        "import verl; print('verl lives')"
    )
    done = python(code)
    assert "verl lives" in done.stdout
    assert "could not be registered" in done.stderr
    assert "the cause" in done.stderr


# ---- trainers


def test_trainers_keep_their_names_and_their_base() -> None:
    for mode in MODES:
        wrapped = get_trainer_cls(mode)
        assert issubclass(wrapped, RRedCoTTrainerMixin)
        assert issubclass(wrapped, PPOTrainer)
    before = dict(trainer_base.TRAINER_REGISTRY)
    wrap_trainers()
    assert before == trainer_base.TRAINER_REGISTRY


def test_the_mode_is_compared_with_the_literal_sync() -> None:
    assert 'self.trainer_mode == "sync"' in inspect.getsource(trainer_base.PPOTrainer._build_replay_buffer)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_compute_old_log_prob", ["self", "batch", "metrics"]),
        ("_compute_advantage", ["self", "batch", "metrics"]),
        ("_save_checkpoint", ["self"]),
        ("_load_checkpoint", ["self"]),
        ("_init_tokenizer", ["self"]),
    ],
)
def test_the_methods_we_extend(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(PPOTrainer, method)).parameters) == parameters


def test_advantages_are_made_where_we_expect() -> None:
    source = inspect.getsource(PPOTrainer._compute_advantage)
    assert "compute_advantage_for_multi_trajectories(" in source
    assert "adv_estimator=self.config.algorithm.adv_estimator" in source
    assert "batch_keys=batch.keys" in source
    assert "select_fields=fields" in source
    step = inspect.getsource(PPOTrainer._step_once)
    order = [
        "_balance_batch",
        "_compute_old_log_prob",
        "_compute_ref_log_prob",
        "_compute_advantage",
        "_update_actor",
    ]
    assert [step.index(name) for name in order] == sorted(step.index(name) for name in order)


# ---- estimator


def test_the_estimator_is_registered_and_needs_our_trainer() -> None:
    assert core_algos.get_adv_estimator_fn("rredcot") is compute_rredcot_advantage
    with pytest.raises(ValueError, match="plugin's trainer"):
        compute_rredcot_advantage(torch.zeros(1, 2), torch.ones(1, 2))


def verl_data(rewards: torch.Tensor, mask: torch.Tensor, uids: list[str]):
    from verl import DataProto

    tensors = {"token_level_rewards": rewards, "response_mask": mask}
    return DataProto.from_dict(tensors, non_tensors={"uid": np.array(uids, dtype=object)})


def test_verl_calls_the_estimator_with_rewards_mask_config_and_index() -> None:
    seen = {}

    def step(rewards: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.update(rewards=rewards, mask=mask)
        return rewards * 2, rewards * 3

    rewards, mask = torch.rand(3, 4), torch.ones(3, 4)
    data = verl_data(rewards, mask, ["a", "a", "b"])
    keys = ["a_0_0", "a_1_0", "b_0_0"]
    with credit_step(step):
        out = compute_advantage_for_multi_trajectories(data, keys, "rredcot", config=OmegaConf.create({}))
    assert torch.equal(out.batch["advantages"], rewards * 2)
    assert torch.equal(out.batch["returns"], rewards * 3)
    assert seen["rewards"].shape == (3, 4)


@settings(deadline=None, max_examples=60)
@given(batches())
def test_one_segment_a_trace_is_verls_own_grpo(rollouts: rr.Rollouts) -> None:
    for by_std, scale in ((True, "group_std"), (False, "none")):
        rewards = rollouts.rewards * rollouts.response_mask
        expected, _ = core_algos.compute_grpo_outcome_advantage(
            rewards.clone(),
            rollouts.response_mask.float(),
            np.array(rollouts.group_ids, dtype=object),
            norm_adv_by_std_in_grpo=by_std,
        )
        none = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none", scale=scale))
        assert torch.allclose(none.advantages, expected, atol=1e-6)
        assert torch.allclose(none.returns, expected, atol=1e-6)
        config = rr.RRedCoTConfig(segmenter="fixed", segmenter_kwargs={"tokens": 3}, scale=scale)
        segments = config.build_segmenter()(rollouts)
        mean = none.values if segments.max_segments == 1 else none.values.expand(-1, segments.max_segments)
        constant = rr.assign_credit(rollouts, config, segments=segments, values=mean)
        assert torch.allclose(constant.advantages, expected, atol=1e-5)


def test_other_estimators_are_bit_identical_with_and_without_us() -> None:
    """Every estimator of verl that runs on rewards alone, in a process with the plugin and in one without."""
    code = (
        "import torch, numpy as np, warnings; warnings.simplefilter('ignore')\n"
        "from verl import DataProto\n"
        "from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories as f\n"
        "from verl.trainer.config import AlgoConfig\n"
        "import hashlib\n"
        "torch.manual_seed(0); mask = (torch.rand(8, 9) > .2).float(); rew = torch.rand(8, 9) * mask\n"
        "uid = [f'u{i // 4}' for i in range(8)]\n"
        "for name in ('grpo', 'rloo', 'reinforce_plus_plus', 'reinforce_plus_plus_baseline', 'opo', 'grpo_passk'):\n"
        "    d = DataProto.from_dict({'token_level_rewards': rew.clone(), 'response_mask': mask.clone()},"
        " non_tensors={'uid': np.array(uid, dtype=object)})\n"
        "    out = f(d, [f'{u}_{i}_0' for i, u in enumerate(uid)], name, config=AlgoConfig(adv_estimator=name))\n"
        "    print(name, hashlib.sha256(out.batch['advantages'].numpy().tobytes()).hexdigest())\n"
    )
    with_us, without = python(code), python(code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert with_us.stdout == without.stdout
    assert len(with_us.stdout.splitlines()) == 6, with_us.stderr[-2000:]


# ---- configuration


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
        ("+algorithm.rredcot.lam=2", "lam=2: allowed are numbers from 0 to 1"),
    ],
)
def test_bad_options_stop_the_trainer_before_anything_is_built(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_trainer_cls("sync")(verl_config(override))


def test_the_legacy_trainer_refuses_at_its_start() -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    with pytest.raises(ValueError, match=r"trainer\.use_v1=true"):
        RayPPOTrainer(verl_config("algorithm.adv_estimator=rredcot"))
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
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2", "ulysses"),
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


# ---- engine


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


# ---- metrics


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
