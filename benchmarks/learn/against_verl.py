"""Real verl runs of the same task, and whether the lean trainer's rewards are theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lab.store import Store
from lab.tasks import FAMILIES
from record import describe_machine, git_head

from learn.batch import first_actor
from learn.reward_model import load_reward_model
from learn.runs import DONE, FAILED, TRAIN_SEEDS, VERL, Record, Run, model_digest, save
from learn.statistics import interval
from learn.summary import Summary, shown
from learn.systems import CREDIT, GRPO, RED, Judging
from rredcot_plugin.demo.training import LEARNING_RATE, PROMPTS, ROLLOUTS, TrainingFailedError, TrainingRun, train
from rredcot_plugin.report.curves import REWARD, read_scalars
from rredcot_plugin.tiny.progress import Progress

TASKS = {"sums": "chain_sum", "sorting": "number_sorting"}
"""Families that the demo's data preparation knows."""

THIRDS = 3
REWARD_MODEL = "reward_model"
"""Folder of a run's reward model, in the form in which verl users have theirs."""


@dataclass(frozen=True)
class RealRun(TrainingRun):
    """A run of the demo's script with ``options`` of ``algorithm.rredcot`` and a warm-up."""

    options: tuple[tuple[str, Any], ...] = ()
    warmup: int = 0

    def overrides(self, ray_folder: Path) -> list[str]:
        own = [f"+algorithm.rredcot.{key}={value}" for key, value in self.options]
        warmup = f"actor_rollout_ref.actor.optim.lr_warmup_steps={self.warmup}"
        return [*super().overrides(ray_folder), warmup, *own]


def real_run(run: Run, folder: Path) -> RealRun:
    """The run of verl that a lean run stands for.

    Raises:
        ValueError: a family, system, size or rate that the demo's script cannot run.
    """
    if run.family not in TASKS:
        raise ValueError(f"--families {run.family}: real runs know {', '.join(TASKS)}")
    if run.system.kind not in (GRPO, CREDIT):
        raise ValueError(f"--systems {run.system.name}: a control of this benchmark, not a way to train with verl")
    if (run.sizes.prompts, run.sizes.group) != (PROMPTS, ROLLOUTS) or run.rate != float(LEARNING_RATE):
        raise ValueError(
            f"{run.name}: real runs have {PROMPTS} prompts x {ROLLOUTS} and a rate of {LEARNING_RATE}"
        )
    estimator, options = "grpo" if run.system.kind == GRPO else "rredcot", dict(run.system.options)
    if run.system.needs_reward_model:
        if options != RED:
            raise ValueError(f"--systems {run.system.name}: with a reward model, real runs know red alone")
        estimator, options = "red", {"value_kwargs.path": str(folder / REWARD_MODEL)}
    steps, seed, warmup = run.sizes.steps, run.seed, run.sizes.warmup
    return RealRun(
        estimator,
        folder / "run",
        folder / "data",
        steps,
        seed,
        "hf_cpu",
        options=tuple(options.items()),
        warmup=warmup,
    )


def perform_real(run: Run, folder: Path, work: Path, models: Path) -> Record:
    """Train with verl, minutes a run, and keep its curves; a run that fails is kept with its reason."""
    own = (work / Path(run.file).stem).resolve()
    real = real_run(run, own)
    judged: Record = {}
    if run.system.needs_reward_model:
        judged["reward_model_auc"] = save_reward_model(run, models, own / REWARD_MODEL)
    command = [
        sys.executable,
        "-m",
        "rredcot_plugin.demo.prepare_data",
        str(real.data),
        "--tasks",
        TASKS[run.family],
    ]
    command += ["--train-size", str(run.sizes.steps * PROMPTS), "--val-size", str(run.sizes.eval_questions)]
    command += ["--seed", str(TRAIN_SEEDS + run.seed)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    try:
        train(real, _show(run.name))
        record = {"status": DONE, "steps": _curves(real)}
    except TrainingFailedError as error:
        record = {"status": FAILED, "reason": str(error)}
    record |= judged | {"commit": git_head(), "cpu": describe_machine()["cpu"]}
    save(folder, run, record)
    return record


def save_reward_model(run: Run, models: Path, path: Path, judging: Judging | None = None) -> float:
    """Write the reward model that lean runs of this family read, with the actor's tokenizer; its held-out area under
    the curve."""
    family, store, clean_steps = FAMILIES[run.family], Store(models), run.sizes.clean_steps
    actor, digest = first_actor(family, store, clean_steps, run.device), model_digest(family.model, clean_steps)
    network = load_reward_model(actor, store, digest, judging or Judging())
    area = float(network.held_out_auc)
    del network.held_out_auc  # no part of a checkpoint
    network.save_pretrained(path)
    actor.tokenizer.save_pretrained(path)
    return area


def _curves(real: RealRun) -> dict[str, list[float]]:
    scalars = read_scalars(real.tensorboard)
    names = {"accuracy": REWARD, "grad_norm": "actor/grad_norm", "seconds": "timing_s/step"}
    return {name: [value for _, value in scalars[tag]] for name, tag in names.items()}


def _show(name: str) -> Any:
    said: set[int] = set()

    def show(progress: Progress) -> None:
        if progress.step and progress.step not in said:
            said.add(progress.step)
            print(f"verl {name}: step {progress.step}, reward {progress.reward:.2f}", flush=True)

    return show


def twin(run: Run) -> Run:
    """The real run of a lean one."""
    return replace(run, trainer=VERL)


def compare(lean: Sequence[Record], real: Sequence[Record], start: str) -> Summary:
    """Mean reward and gradient norm by thirds of the run, of both trainers, and lean − verl."""
    summary: Summary = {}
    for name in ("accuracy", "grad_norm"):
        ours, theirs = (_by_third(records, name) for records in (lean, real))
        for third in range(THIRDS):
            x, y = ours[:, third], theirs[:, third]
            entries = {
                "lean": interval(lambda i, x=x: float(x[i].mean()), [len(x)]),  # type: ignore[misc]
                "verl": interval(lambda i, y=y: float(y[i].mean()), [len(y)]),  # type: ignore[misc]
                "difference": interval(
                    lambda i, j, x=x, y=y: float(x[i].mean() - y[j].mean()),  # type: ignore[misc]
                    [len(x), len(y)],
                ),
            }
            label = "reward" if name == "accuracy" else name
            summary |= {f"{start}/{label}_third_{third + 1}/{key}": entry for key, entry in entries.items()}
    return summary


def _by_third(records: Sequence[Record], name: str) -> np.ndarray:
    rows = [[part.mean() for part in np.array_split(np.array(r["steps"][name]), THIRDS)] for r in records]
    return np.array(rows)


def table(summary: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: a row for each measure, both trainers and the difference."""
    lines = ["| | lean | verl | lean − verl |", "| --- | --- | --- | --- |"]
    for start in dict.fromkeys(name.rpartition("/")[0] for name in summary):
        cells = [shown(dict(summary[f"{start}/{key}"]), 3) for key in ("lean", "verl", "difference")]
        lines.append(f"| {start.replace('/', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
