"""Small runs of the benchmark on learning, for its tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from learn.runs import DONE, Run, Sizes
from learn.schedule import Plan
from learn.systems import System, choose

SMALL = Sizes(steps=2, prompts=2, group=4, eval_every=2, eval_questions=4, eval_samples=1, final_samples=1)
TINY = replace(SMALL, steps=1, eval_every=1, eval_questions=2)
NO_MODELS = Path("no clean model is asked for")


def system(name: str) -> System:
    return choose([name], [])[0]


def run_of(name: str, sizes: Sizes = SMALL, rate: float = 2e-4, seed: int = 0) -> Run:
    return Run("sums", system(name), rate, seed, sizes)


def small_plan() -> Plan:
    """Two systems, one rate, one tuning seed and two measured ones: six runs of a step each."""
    return Plan(("sums",), tuple(choose(["grpo", "rredcot"], [])), (1e-4,), (9001,), (0, 1), TINY)


def made_up(run: Run, accuracy: list[float], seconds: float) -> dict[str, Any]:
    """The record of a run that never was, with these accuracies and seconds a step."""
    steps = len(accuracy) - 1
    row: dict[str, Any] = dict.fromkeys(("accuracy", "grad_norm", "entropy", "response_tokens"), [1.0] * steps)
    row["continuation_tokens"] = [0.0] * steps
    row |= {f"seconds_{phase}": [seconds / 4] * steps for phase in ("rollout", "log_prob", "credit", "update")}
    evals = {"step": list(range(steps + 1)), "accuracy": accuracy, "all_right": accuracy, "lucky": accuracy}
    return {"status": DONE, "steps": row, "evals": evals, "cpu": "", "commit": "", "wall_seconds": 1.0}
