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
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

import rredcot_plugin as rr
from rredcot_plugin.integrations.verl import SUPPORTED_VERL
from rredcot_plugin.integrations.verl.estimator import compute_rredcot_advantage, credit_step
from rredcot_plugin.integrations.verl.trainer import MODES, RRedCoTTrainerMixin, wrap_trainers
from tests.unit.reference import batches


def python(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=300
    )


def test_version() -> None:
    assert verl.__version__ == SUPPORTED_VERL


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


def test_the_estimator_is_registered_and_needs_our_trainer() -> None:
    assert core_algos.get_adv_estimator_fn("rredcot") is compute_rredcot_advantage
    with pytest.raises(ValueError, match="one of verl's own trainers"):
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
