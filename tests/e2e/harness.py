"""Start real verl, Ray and TransferQueue on this machine and read what it logged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import rredcot_plugin

DEMO = Path(rredcot_plugin.__file__).parent / "demo"
TINY = DEMO.parent / "tiny"
SCRIPT = TINY / "train_cpu.sh"
ROOT = Path(__file__).parents[2]
TIME_LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Inputs:
    """What a run trains on."""

    model: Path
    train: Path
    val: Path
    reward: Path


@dataclass(frozen=True)
class Run:
    """A finished run: exit code, everything it printed, and the metrics of each step."""

    code: int
    output: str
    steps: dict[int, dict[str, float]]
    folder: Path

    def tail(self) -> str:
        lines = [line for line in self.output.splitlines() if "Warning" not in line]
        return "\n".join(lines[-60:])


def train(inputs: Inputs, folder: Path, *overrides: str, script: Path = SCRIPT, **knobs: str) -> Run:
    """Run a training script with overrides; ``knobs`` are its environment variables."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    env = {
        **os.environ,
        "PYTHON": sys.executable,
        # Ray's workers import agent loops of the tests by their names.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "MODEL_PATH": str(inputs.model),
        "TRAIN_FILE": str(inputs.train),
        "VAL_FILE": str(inputs.val),
        "REWARD_PATH": str(inputs.reward),
        "OUT_DIR": str(folder),
        "VERL_FILE_LOGGER_PATH": str(metrics),
        **{"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "MICRO_BATCH_SIZE": "8", "TOTAL_STEPS": "2"},
        **knobs,
    }
    done = subprocess.run(
        ["bash", str(script), 'trainer.logger=["console","file","tensorboard"]', *overrides],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
    )
    return Run(done.returncode, done.stdout, _read(metrics), folder)


def _read(path: Path) -> dict[int, dict[str, float]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {int(line["step"]): line["data"] for line in lines}
