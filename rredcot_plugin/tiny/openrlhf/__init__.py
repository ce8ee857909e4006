"""An OpenRLHF run of the tiny reasoner on two cores, for tests and benchmarks: 8 prompts × 8 rollouts per step."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rredcot_plugin.tiny import CHECKPOINT

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STEP = re.compile(r"Global step (\d+): (\{.*\})")
"""What OpenRLHF logs of a step."""

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


def command(folder: Path, *words: str, without: str | None = None) -> list[str]:
    """The run, with further flags; ``without`` one of ``FLAGS`` and its value. Models and checkpoints go below ``folder``."""
    flags = FLAGS.split()
    if without is not None:
        del flags[flags.index(without) : flags.index(without) + 2]
    places = ["--ckpt.output_dir", f"{folder}/model", "--ckpt.path", f"{folder}/checkpoints"]
    return [sys.executable, "-m", "rredcot_plugin.integrations.openrlhf", *flags, *words, *places]


def environment() -> dict[str, str]:
    """The present one, on the CPU platform, with Ray's workers started when they are needed."""
    return {
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


def steps_of(log: str) -> dict[int, Mapping[str, Any]]:
    """What OpenRLHF has logged of each step; numbers that are not finite are infinite.

    >>> steps_of("x Global step 3: {'policy_loss': -0.5, 'y': nan}")
    {3: {'policy_loss': -0.5, 'y': inf}}
    """
    return {
        int(number): ast.literal_eval(re.sub(r"\b(nan|inf)\b(?!')", "1e999", metrics))
        for number, metrics in STEP.findall(log)
    }
