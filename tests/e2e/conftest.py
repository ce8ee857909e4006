from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import DEMO, TINY, Inputs


@pytest.fixture(scope="session")
def demo_inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The tiny reasoner that ships with the package, on freshly generated problems."""
    folder = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "rredcot_plugin.demo.prepare_data", str(folder)]
    subprocess.run([*command, "--train-size", "64", "--val-size", "16"], check=True, timeout=300)
    return Inputs(TINY / "checkpoint", folder / "train.parquet", folder / "val.parquet", DEMO / "reward.py")


HOSTILE_REWARD = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """What a careless user writes: NaN for one answer in two, infinity for others, a share of digits for the rest; lines
    that earned something that is not a number, or stand nowhere."""
    said = [None, "[[", '[["a", 1], [9999999, 0.5]]', "[[1, 1e39]]"][len(solution_str) % 4]
    if len(solution_str) % 2 == 0:
        score = float("nan")
    elif len(solution_str) % 3 == 0:
        score = float("inf")
    else:
        score = sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))
    return {"score": score, "process_rewards": said}
'''


@pytest.fixture(scope="session")
def hostile_inputs(demo_inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A model with random weights, which writes broken UTF-8, and a reward that is not always a number."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("hostile")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(demo_inputs.model)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo_inputs.model).save_pretrained(folder)
    reward = Path(folder) / "reward.py"
    reward.write_text(HOSTILE_REWARD)
    return Inputs(Path(folder), demo_inputs.train, demo_inputs.val, reward)
