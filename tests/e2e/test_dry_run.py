"""`rredcot dry-run` trains: a user's recipe with LoRA, and one whose reward fails only while it trains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

MATH = Path(__file__).parents[2] / "recipes" / "math"


def dry_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("rredcot")), "dry-run", *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.nightly
def test_a_recipe_with_lora_trains_and_earns(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = dry_run(tmp_path, str(MATH / "run_r1_distill_1p5b_lora_vllm.sh"), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (reward,) = re.findall(r"2 steps of stock verl on the CPU; mean reward ([\d.]+)", done.stdout)
    assert float(reward) > 0  # so advantages are not all 0
    (segments,) = re.findall(r"([\d.]+) segments and", done.stdout)
    assert float(segments) > 1
    training = out / "run_r1_distill_1p5b_lora_vllm" / "training"
    overrides = (training / "overrides.txt").read_text()
    assert "++actor_rollout_ref.model.lora.merge=True" in overrides
    assert "actor_rollout_ref.actor.clip_ratio_high=0.28" in overrides  # the recipe's own
    assert '"actor/grad_norm"' in (training / "metrics.jsonl").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.nightly
def test_what_goes_wrong_in_training_is_one_line(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        "    if 'global_steps' in (extra_info or {}) or 'num_turns' in (extra_info or {}):\n"
        "        raise OSError('the judge does not answer')\n"
        "    return float(ground_truth in solution_str)\n"
    )
    script = str(MATH / "run_qwen3_4b_fsdp2_vllm.sh")
    done = dry_run(tmp_path, script, "-O", f"reward.custom_reward_function.path={reward}")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if "✗" in line]
    assert "training: " in line and "the judge does not answer" in line and "log: " in line
