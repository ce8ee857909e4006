"""Real OpenRLHF, Ray and DeepSpeed on the CPU: it trains, resumes, and is left alone where another estimator trains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rredcot_plugin.tiny import CHECKPOINT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT = 600

FLAGS = f"""
--actor.num_nodes 1 --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --vllm.num_engines 1 --vllm.enforce_eager
--actor.model_name_or_path {CHECKPOINT} --reward.remote_url {HERE / "reward.py"}
--data.prompt_dataset {HERE / "questions.jsonl"} --data.input_key input --data.label_key label
--data.apply_chat_template --data.max_len 256 --rollout.max_new_tokens 128
--rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 16
--train.batch_size 64 --train.micro_batch_size 16 --train.num_episodes 1
--algo.kl.init_coef 0 --actor.adam.lr 5e-4 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0
--ds.attn_implementation sdpa --ds.zero_stage 2 --algo.advantage.is_correction_level token
"""


def run(folder: Path, *words: str) -> str:
    """Standard output and error of a run; it must end well."""
    environment = {
        **os.environ,
        "OPENRLHF_PLATFORM": "cpu",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "rredcot_plugin.integrations.openrlhf", *FLAGS.split(), *words]
    places = ["--ckpt.output_dir", f"{folder}/model", "--ckpt.path", f"{folder}/checkpoints"]
    done = subprocess.run(
        [*command, *places],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def numbers(log: str, name: str) -> list[float]:
    """A metric of every step."""
    return [float(found) for found in re.findall(rf"'{re.escape(name)}': ([-0-9.e]+)", log)]


@pytest.mark.parametrize("estimator", ["rredcot", "group_norm"])
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


def test_an_interrupted_run_goes_on_with_its_fit(tmp_path: Path) -> None:
    words = ("--algo.advantage.estimator", "rredcot", "--ckpt.save_steps", "2", "--logger.logging_steps", "1")
    first = run(tmp_path, *words, "--data.max_samples", "16")
    assert len(numbers(first, "rollout/reward_mean")) == 2
    second = run(tmp_path, *words, "--data.max_samples", "32", "--ckpt.load_enable")
    assert len(numbers(second, "rollout/reward_mean")) == 2  # steps 3 and 4
    assert "rredcot: the fit of past steps is back" in second


def test_probes_as_rows_of_their_own_give_the_same(tmp_path: Path) -> None:
    found = []
    for backend in ("cached", "batched"):
        (tmp_path / backend).mkdir()
        words = ("--algo.advantage.estimator", "rredcot", "--algo.rredcot.probe_backend", backend)
        found.append(numbers(run(tmp_path / backend, *words, "--data.max_samples", "8"), "rredcot/value/raw/mean"))
    assert found[0] == pytest.approx(found[1], rel=1e-4) and found[0]


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
