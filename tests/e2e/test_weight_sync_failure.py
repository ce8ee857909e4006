"""A weight sync that fails ends the whole run: non-zero exit code, the cause in the output, within minutes.

The run is the real one (`rredcot_plugin/tiny/train_cpu.sh`); a module that verl imports through VERL_USE_EXTERNAL_MODULES
breaks the sync in the process where that can happen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import SCRIPT, TIME_LIMIT_SECONDS

pytestmark = pytest.mark.e2e

LOSE_ONE_WEIGHT_ON_THE_WAY = """
from rredcot_plugin.integrations.verl_cpu import hf_adapter
complete = hf_adapter._buckets
async def incomplete(weights, limit):
    async for bucket in complete(weights, limit):
        yield [(name, weight) for name, weight in bucket if name != "model.norm.weight"]
hf_adapter._buckets = incomplete
"""
SEND_A_PICKLE = """
import pickle
from rredcot_plugin.integrations.verl_cpu import store_checkpoint_engine
store_checkpoint_engine.pack = pickle.dumps
"""
RECEIVER_FAILS = """
from rredcot_plugin.integrations.verl_cpu import vllm_extension
def fail(self, *args, **kwargs):
    raise ValueError("the receiver cannot take these weights")
vllm_extension.CPUColocateWorkerExtension._update_weights = fail
"""


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, str]:
    """A random model with a byte-level tokenizer, a few prompts and a reward: environment of the script."""
    import pandas as pd
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rredcot_plugin.tiny.reasoner import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(tmp_path / "model")
    row = {
        "data_source": "tiny",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    pd.DataFrame([row] * 8).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "reward.py").write_text("def compute_score(**kwargs):\n    return 1.0\n")
    return {
        "MODEL_PATH": str(tmp_path / "model"),
        "TRAIN_FILE": str(tmp_path / "data.parquet"),
        "VAL_FILE": str(tmp_path / "data.parquet"),
        "REWARD_PATH": str(tmp_path / "reward.py"),
        "OUT_DIR": str(tmp_path / "out"),
        "PYTHON": sys.executable,
    }


def run_with_broken_sync(
    inputs: dict[str, str], tmp_path: Path, *, module: str, breakage: str, **knobs: str
) -> str:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "breakage.py").write_text(breakage)
    hook = f"from rredcot_plugin.integrations import lazy\nlazy.install({{{module!r}: 'breakage'}})\n"
    (modules / "install_breakage.py").write_text(hook)
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | inputs | knobs | {"PYTHONPATH": path}
    result = subprocess.run(
        ["bash", str(SCRIPT)],
        env=env | {"VERL_USE_EXTERNAL_MODULES": "install_breakage"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
    )
    assert result.returncode != 0, result.stdout[-4000:]
    assert "step:1 " not in result.stdout
    return result.stdout


def test_hf_cpu(inputs: dict[str, str], tmp_path: Path) -> None:
    output = run_with_broken_sync(
        inputs,
        tmp_path,
        module="rredcot_plugin.integrations.verl_cpu.hf_adapter",
        breakage=LOSE_ONE_WEIGHT_ON_THE_WAY,
        ROLLOUT="hf_cpu",
    )
    assert "weights did not arrive: ['model.norm.weight']" in output[-6000:]


@pytest.mark.nightly
def test_cpu_store(inputs: dict[str, str], tmp_path: Path) -> None:
    output = run_with_broken_sync(
        inputs,
        tmp_path,
        module="rredcot_plugin.integrations.verl_cpu.store_checkpoint_engine",
        breakage=SEND_A_PICKLE,
        ROLLOUT="hf_cpu",
        TRAINER_MODE="separate_async",
    )
    assert "cpu_store: expected a chunk of weights with its header, got " in output[-12000:]


@pytest.mark.vllm
def test_vllm(inputs: dict[str, str], tmp_path: Path) -> None:
    output = run_with_broken_sync(
        inputs,
        tmp_path,
        module="rredcot_plugin.integrations.verl_cpu.vllm_extension",
        breakage=RECEIVER_FAILS,
        ROLLOUT="vllm",
    )
    assert "the receiver cannot take these weights" in output[-12000:]
