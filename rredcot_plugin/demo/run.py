"""`rredcot demo`: train the tiny reasoner with each estimator on the same data and seed, then draw what happened.

A finished run is kept and not repeated. An unfinished one starts over: thirty steps are cheaper than the
checkpoints that would be needed to resume them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rredcot_plugin
from rredcot_plugin.demo.training import PROMPTS, TrainingRun, train
from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.progress import Progress

ESTIMATORS = ("grpo", "rredcot")
ROLLOUTS = ("hf_cpu", "vllm")
TRAIN_SIZE, VAL_SIZE = 512, 64
MARKER = "run.json"


@dataclass(frozen=True)
class DemoSettings:
    """What the demo does. Raises ValueError naming key, value and what is allowed."""

    out: Path
    steps: int = 30
    seed: int = 0
    estimators: tuple[str, ...] = ESTIMATORS
    rollout: str = "hf_cpu"
    force: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: expected a positive integer")
        if not self.estimators or set(self.estimators) - set(ESTIMATORS):
            raise ValueError(
                f"estimators={','.join(self.estimators)}: expected one or more of {', '.join(ESTIMATORS)}"
            )
        if self.rollout not in ROLLOUTS:
            raise ValueError(f"rollout={self.rollout}: expected one of {', '.join(ROLLOUTS)}")
        if self.rollout == "vllm" and find_spec("vllm") is None:
            raise ValueError("rollout=vllm: vLLM is not installed here; hf_cpu does without")
        if not (CHECKPOINT / "config.json").is_file():
            raise ValueError(f"{CHECKPOINT}: no model here; python -m rredcot_plugin.demo.train_reasoner makes it")

    def training_run(self, estimator: str) -> TrainingRun:
        out = self.out.resolve()
        return TrainingRun(estimator, out / estimator, out / "data", self.steps, self.seed, self.rollout)


Show = Callable[[str, Progress], None]
Tell = Callable[[str], None]


def run_demo(settings: DemoSettings, tell: Tell, show: Show) -> list[TrainingRun]:
    """Prepare the data and train once with each estimator; the finished runs in order.

    ``tell`` gets sentences, ``show`` an estimator and its progress.

    Raises:
        ValueError: a folder in the way that the demo did not make.
        TrainingFailedError: a run ended with an error.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    runs = [settings.training_run(estimator) for estimator in dict.fromkeys(settings.estimators)]
    todo = [run for run in runs if settings.force or not is_finished(run)]
    for run in runs:
        if run not in todo:
            tell(f"{run.estimator}: finished before, kept (--force repeats it)")
    if todo:
        prepare_data(runs[0].data, settings.steps, settings.seed)
    for run in todo:
        _clear(run, tell)
        tell(f"{run.estimator}: log in {run.log}")
        started = time.monotonic()
        _mark(run, finished=False)
        train(run, lambda progress, name=run.estimator: show(name, progress), settings.keep)  # type: ignore[misc]
        _mark(run, finished=True)
        tell(f"{run.estimator}: {run.steps} steps in {time.monotonic() - started:.0f} s")
    return runs


def prepare_data(folder: Path, steps: int, seed: int) -> None:
    """Write the parquet files, in a process of its own so that its memory is free again for the training."""
    train_size = min(TRAIN_SIZE, steps * PROMPTS)
    command = [sys.executable, "-m", "rredcot_plugin.demo.prepare_data", str(folder), "--seed", str(seed)]
    command += ["--train-size", str(train_size), "--val-size", str(VAL_SIZE)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def is_finished(run: TrainingRun) -> bool:
    """True if this very run, of this version, has come to its end in its folder."""
    marker = run.folder / MARKER
    return marker.is_file() and json.loads(marker.read_text()) == {**_identity(run), "finished": True}


def _identity(run: TrainingRun) -> dict[str, Any]:
    return {
        "estimator": run.estimator,
        "steps": run.steps,
        "seed": run.seed,
        "rollout": run.rollout,
        "version": rredcot_plugin.__version__,
    }


def _mark(run: TrainingRun, finished: bool) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / MARKER).write_text(json.dumps({**_identity(run), "finished": finished}))


def _clear(run: TrainingRun, tell: Tell) -> None:
    """Remove what an earlier run left; only ever a folder with our marker in it."""
    if not run.folder.exists():
        return
    if not (run.folder / MARKER).is_file():
        raise ValueError(f"{run.folder}: in the way, and not made by rredcot demo; choose another --out")
    tell(f"{run.estimator}: an unfinished or different run is there; starting over")
    shutil.rmtree(run.folder)
