"""One training run in a process of its own: stock `python -m verl.trainer.main_ppo`, watched while it runs."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.tiny import CHECKPOINT, SCRIPT
from rredcot_plugin.tiny.progress import relevant_lines
from rredcot_plugin.tiny.watched import Show, make_ray_folder, run_watched

HERE = Path(__file__).parent
MAX_PROMPT_LENGTH, MAX_RESPONSE_LENGTH = 64, 96
PROMPTS, ROLLOUTS = 8, 8
LEARNING_RATE = "2e-4"
DUMPS = 5
"""Dumps of segment credit in a run, evenly spread."""


class TrainingFailedError(RuntimeError):
    """A run ended with an error; the message ends in the last relevant lines of its log."""


@dataclass(frozen=True)
class TrainingRun:
    """What one run does and where it leaves things; ``folder`` holds its log, tensorboard events and dumps."""

    estimator: str
    folder: Path
    data: Path
    steps: int
    seed: int
    rollout: str

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def dumps(self) -> Path:
        return self.folder / "credit"

    def environment(self) -> dict[str, str]:
        """What `train_cpu.sh` reads."""
        return {
            **os.environ,
            "PYTHON": sys.executable,
            "MODEL_PATH": str(CHECKPOINT),
            "TRAIN_FILE": str(self.data / "train.parquet"),
            "VAL_FILE": str(self.data / "val.parquet"),
            "REWARD_PATH": str(HERE / "reward.py"),
            "OUT_DIR": str(self.folder),
            "ROLLOUT": self.rollout,
            "MAX_PROMPT_LENGTH": str(MAX_PROMPT_LENGTH),
            "MAX_RESPONSE_LENGTH": str(MAX_RESPONSE_LENGTH),
            "TRAIN_BATCH_SIZE": str(PROMPTS),
            "ROLLOUT_N": str(ROLLOUTS),
            "LR": LEARNING_RATE,
            "SEED": str(self.seed),
            "TOTAL_STEPS": str(self.steps),
            "TEST_FREQ": str(self.steps),
        }

    def overrides(self, ray_folder: Path) -> list[str]:
        """Hydra overrides on top of the script's own."""
        options = [
            f"algorithm.adv_estimator={self.estimator}",
            # sampled, not greedy: the accuracy that training raises
            "trainer.val_before_train=True",
            "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
            "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
            # a Ray of our own, whatever else runs on this machine
            "+ray_kwargs.ray_init.address=local",
            f"+ray_kwargs.ray_init._temp_dir={ray_folder}",
        ]
        if self.estimator == "rredcot":
            options += [
                "+algorithm.rredcot.segmenter=newline",
                f"+algorithm.rredcot.dump_dir={self.dumps}",
                f"+algorithm.rredcot.dump_every={max(1, self.steps // DUMPS)}",
            ]
        return options


def train(run: TrainingRun, show: Show, keep_ray: bool = False) -> None:
    """Run to the end, calling ``show`` whenever the progress changes; all output goes to ``run.log``.

    Ray's folder of the session lies under /tmp and is removed afterwards, unless the run failed or ``keep_ray``.

    Raises:
        TrainingFailedError: the run ended with an error.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    ray_folder = make_ray_folder()
    code = run_watched(["bash", str(SCRIPT), *run.overrides(ray_folder)], run.environment(), run.log, show)
    if code != 0:
        lines = "\n".join(relevant_lines(run.log))
        raise TrainingFailedError(
            f"training with {run.estimator} failed (exit code {code}); log: {run.log}, Ray's logs: "
            f"{ray_folder}\n{lines}"
        )
    if not keep_ray:
        shutil.rmtree(ray_folder, ignore_errors=True)  # Ray's last processes may still be writing
