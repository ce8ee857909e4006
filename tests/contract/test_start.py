"""What is wrong with a run is found before Ray starts, near misses of our keys included."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from verl.trainer import main_ppo
from verl.trainer.config import AlgoConfig
from verl.utils import config as verl_utils

from rredcot_plugin.integrations.verl.advice import notes_of, warnings_of
from rredcot_plugin.integrations.verl.near_misses import (
    ALIKE,
    HOME,
    _look_alikes,
    check_estimator_name,
    check_keys,
)
from rredcot_plugin.integrations.verl.settings import read_settings, resolve_settings
from rredcot_plugin.integrations.verl.start import begin_run, check_run
from rredcot_plugin.presets import PRESETS, known_keys
from rredcot_plugin.reference.metric_names import known_metrics
from tests.contract.memory import MemoryQueue, lay_down, make_trainer, step
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import bare_rows

GROUP = "hydra.searchpath=[pkg://rredcot_plugin.conf]"


# ---- near misses


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+algorithm.redcot.segmenter=newline", r"algorithm\.redcot: .*algorithm\.rredcot\.segmenter"),
        ("+algorithm.rredcto.lam=0.9", r"algorithm\.rredcto: .*algorithm\.rredcot\.lam"),
        ("+algorithm.RRedCoT.lam=0.9", r"algorithm\.RRedCoT: .*algorithm\.rredcot\.lam"),
        ("+rredcot.segmenter=newline", r"^rredcot: .*algorithm\.rredcot\.segmenter"),
        ("+redcot.segmenter=newline", r"^redcot: .*algorithm\.rredcot\.segmenter"),
        ("+actor_rollout_ref.rredcot.lam=0.9", r"^actor_rollout_ref\.rredcot: .*algorithm\.rredcot\.lam"),
        ("+algorithm.redcot=lean", r"algorithm\.redcot: .*\+rredcot@algorithm\.rredcot="),
        ("+algorithm.segmenter=newline", r"algorithm\.segmenter: .*algorithm\.rredcot\.segmenter"),
        ("+algorithm.preset=lean", r"algorithm\.preset: .*algorithm\.rredcot\.preset"),
    ],
)
def test_a_near_miss_of_our_keys_is_an_error_that_names_the_right_one(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_keys(verl_config(override))
    check_keys(verl_config(override, "algorithm.adv_estimator=grpo"))  # not ours to judge


def test_what_is_right_is_no_near_miss() -> None:
    check_keys(verl_config())
    check_keys(verl_config("+algorithm.rredcot.segmenter=newline"))
    check_keys(verl_config(GROUP, "+rredcot@algorithm.rredcot=default"))


def test_no_key_of_verl_looks_like_ours() -> None:
    assert ALIKE > 0.6
    assert not list(_look_alikes(verl_config()))
    shared = set(known_keys()) & set(AlgoConfig.__dataclass_fields__)
    assert shared == {"lam"}, f"a key of {HOME} that verl reads under algorithm"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rredcott", "rredcot"), ("RREDCoT", "rredcot"), ("redcot", "rredcot"), ("rredcot_pp0", "rredcot_ppo"),
     ("redd", "red")],
)  # fmt: skip
def test_an_estimators_name_with_a_typo_is_found_at_the_start(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"adv_estimator={name}: unknown\. Did you mean {meant}\?"):
        check_run(verl_config(f"algorithm.adv_estimator={name}"))


@pytest.mark.parametrize("name", ["grpo", "gae", "remax", "my_own"])
def test_other_estimators_are_not_ours_to_judge(name: str) -> None:
    config = verl_config(f"algorithm.adv_estimator={name}")
    check_estimator_name(config)
    assert check_run(config) is None


# ---- when it is found


def test_verls_main_program_checks_our_options_before_it_starts_ray() -> None:
    """``main`` calls ``validate_config``, by the name it has imported, before ``run_ppo`` starts Ray."""
    assert main_ppo.validate_config is verl_utils.validate_config
    assert verl_utils.validate_config.__module__ == "verl.utils.config"
    assert hasattr(verl_utils.validate_config, "__wrapped__"), "ours, around verl's"
    source = inspect.getsource(main_ppo)
    body = source[source.index("def main(config)") :]
    assert body.index("validate_config(") < body.index("run_ppo(")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+algorithm.redcot.segmenter=newline", "algorithm.redcot: nothing reads this key"),
        ("+algorithm.rredcot.segmenter=newlin", "Did you mean 'newline'?"),
        ("algorithm.adv_estimator=rredcott", "Did you mean rredcot?"),
    ],
)
def test_a_mistake_ends_verls_main_program_without_ray(override: str, message: str, tmp_path: Path) -> None:
    sizes = (
        "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.n_gpus_per_node=1 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=hf "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    )
    # whoever comes as far as Ray in this process fails in another way
    code = (
        "import runpy, sys, ray\n"
        "def init(*args, **kwargs): raise SystemExit('Ray was started')\n"
        "ray.init = init\n"
        "runpy.run_module('verl.trainer.main_ppo', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code, "algorithm.adv_estimator=rredcot", *sizes.split(), override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Ray was started" not in done.stderr


def test_verls_check_leaves_the_configuration_as_it_is() -> None:
    config = verl_config(
        "algorithm.adv_estimator=rredcot_ppo", "data.train_batch_size=8", "trainer.n_gpus_per_node=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.name=hf",
    )  # fmt: skip
    verl_utils.validate_config(config, False, False)
    assert config.critic.enable is None
    check_run(config)
    assert config.critic.enable


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_estimator=red"], "reads reward_model, which needs trainer.use_v1=true"),
        (["+algorithm.rredcot.value_estimator=attention"], "reads attention, which needs trainer.use_v1=true"),
        (["+algorithm.rredcot.baseline=token"], "baseline=token: needs trainer.use_v1=true"),
        (
            ["actor_rollout_ref.model.use_fused_kernels=True"],
            "in the log-prob pass alone, which .*use_fused_kernels=True",
        ),
        (["+algorithm.rredcot.probe_backend=batched"], "in the log-prob pass alone, which probe_backend=batched"),
        (["algorithm.adv_estimator=rredcot_ppo"], "critic.enable=None: .* set critic.enable=True"),
        (["+algorithm.rredcot.histogram_every=5"], "histogram_every=5: has no effect with trainer.use_v1=false"),
        (["+algorithm.rredcot.credit_workers=8"], "credit_workers=8: has no effect with trainer.use_v1=false"),
        (
            ["+algorithm.rredcot.value_estimator=confidence", "algorithm.rollout_correction.bypass_mode=True"],
            "bypass_mode=True: .* no log-prob pass.* set bypass_mode=False",
        ),
    ],
)
def test_what_the_trainer_over_dataproto_cannot_do(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_run(verl_config("trainer.use_v1=False", *overrides))


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("actor_rollout_ref.rollout.n", "abc", 1),
        ("actor_rollout_ref.rollout.n", "-1", 1),
        ("data.train_batch_size", "x", 0),
        ("data.train_batch_size", "null", 0),
        ("data.max_response_length", "null", 1),
    ],
)
def test_numbers_of_verls_are_numbers(key: str, value: str, least: int) -> None:
    with pytest.raises(
        ValueError, match=rf"{key}='?{value.replace('null', 'None')}'?: expected an integer from {least}"
    ):
        check_run(verl_config(f"{key}={value}"))


def test_an_asynchronous_run_has_no_batch_size() -> None:
    assert check_run(verl_config("data.train_batch_size=0")) is not None


def test_the_trainer_over_dataproto_takes_the_default_and_a_critic() -> None:
    assert check_run(verl_config("trainer.use_v1=False")) is not None
    critic = ("algorithm.adv_estimator=rredcot_ppo", "critic.enable=True")
    assert check_run(verl_config("trainer.use_v1=False", *critic)) is not None
    assert check_run(verl_config("trainer.use_v1=False", "+algorithm.rredcot.credit_workers=0")) is not None


# ---- where values come from


def test_a_preset_in_verl_and_where_each_value_comes_from() -> None:
    found = resolve_settings(verl_config("+algorithm.rredcot.preset=exact", "+algorithm.rredcot.clip=2.0"))
    assert found.config.scale == "none"
    assert found.sources["scale"] == "preset exact" and found.sources["clip"] == "given"
    assert "scale" not in found.choices, "the preset has named it"
    ppo = resolve_settings(verl_config("algorithm.adv_estimator=rredcot_ppo"))
    assert ppo.sources["scale"] == "algorithm.adv_estimator=rredcot_ppo"


def test_what_follows_verls_own_keys_says_so() -> None:
    found = resolve_settings(
        verl_config("data.max_response_length=4096", "algorithm.norm_adv_by_std_in_grpo=False")
    )
    assert found.config.scale == "none"
    assert "which is false" in found.choices["scale"].reason
    longest = found.choices["segmenter_kwargs.max_response_tokens"]
    assert longest.value == 4096 and "data.max_response_length" in longest.reason
    slow = resolve_settings(verl_config("actor_rollout_ref.model.use_fused_kernels=True"))
    assert slow.choices["probe_backend"].value == "batched"
    assert "use_fused_kernels" in slow.choices["probe_backend"].reason


def test_a_preset_that_breaks_what_a_name_promises_is_named() -> None:
    config = verl_config("algorithm.adv_estimator=rredcot_ppo", "+algorithm.rredcot.preset=lean")
    with pytest.raises(ValueError, match=r"value_estimator=confidence \(preset lean\)"):
        read_settings(config)


# ---- advice


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.lam=0.95"], r"algorithm.lam=0.95 is verl's own and is not read here"),
        (["algorithm.gamma=0.9"], r"algorithm.gamma=0.9 is verl's own"),
        ([], "rollout.n=1 leaves no siblings"),
    ],
)
def test_what_has_no_effect_is_warned_of(
    overrides: list[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        begin_run(verl_config(*overrides))
    assert message in caplog.text


def test_red_with_a_critic_reads_verls_lam() -> None:
    config = verl_config(
        "algorithm.adv_estimator=red", "algorithm.lam=0.95", "critic.enable=True", "actor_rollout_ref.rollout.n=8",
        "+algorithm.rredcot.value_kwargs.path=/m",
    )  # fmt: skip
    assert not [text for text in warnings_of(config, read_settings(config)) if "algorithm.lam" in text]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.use_kl_in_reward=True"], "the penalty is not redistributed"),
        (["+algorithm.rredcot.segmenter=hybrid"], "log-prob of the token before stands in"),
        (["+algorithm.rredcot.segmenter=turn"], "fewer than 3 segments"),
        (["+algorithm.rredcot.segmenter=think_answer"], "two as a rule"),
        (["+algorithm.rredcot.segmenter=none"], "one by definition"),
        (["+algorithm.rredcot.segmenter=fixed", "data.max_response_length=100"], "holds no more of them"),
        (["+algorithm.rredcot.segmenter_kwargs.max_segments=2"], "max_segments=2"),
    ],
)
def test_what_is_good_to_know_is_noted(overrides: list[str], message: str) -> None:
    config = verl_config(*overrides)
    assert any(message in note for note in notes_of(config, read_settings(config)))


def test_the_default_needs_no_note() -> None:
    config = verl_config("actor_rollout_ref.rollout.n=8")
    settings = read_settings(config)
    assert [*warnings_of(config, settings), *notes_of(config, settings)] == []


# ---- metrics and groups


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_as_a_hydra_group(name: str) -> None:
    group = read_settings(verl_config(GROUP, f"+rredcot@algorithm.rredcot={name}"))
    assert group == read_settings(verl_config(f"+algorithm.rredcot.preset={name}"))
    changed = verl_config(GROUP, f"+rredcot@algorithm.rredcot={name}", "algorithm.rredcot.calibrate_window=2")
    assert read_settings(changed).calibrate_window == 2
    with pytest.raises(ValueError, match=rf"use \+rredcot@algorithm\.rredcot={name} instead"):
        read_settings(
            verl_config(GROUP, "+rredcot@algorithm.rredcot=default", f"+algorithm.rredcot.preset={name}")
        )


@pytest.mark.parametrize("backend", ["cached", "batched"])
def test_a_step_in_verl_logs_nothing_that_the_registry_lacks(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    queue, metrics = MemoryQueue(monkeypatch), {}
    trainer = make_trainer(queue, {"segmenter": "newline", "probe_backend": backend})
    step(trainer, lay_down(queue, bare_rows(seed=0), seed=0), metrics)
    ours = {name for name in [*metrics, *(f"timing_s/{own}" for own in trainer.timing_raw)] if "rredcot" in name}
    assert len(ours) > 30
    assert not ours - known_metrics()
