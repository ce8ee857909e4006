"""Read a training run's output while it comes: a progress bar, the reward of each step, the phase before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

BAR = re.compile(r"Training Progress:.*?\[[^\]]*\]")
STEP = re.compile(
    r"\bstep:(\d+) - .*?critic/score/mean:([-+.\deE]+|nan)"
    r"|Global step (\d+): .*'rollout/reward_mean': ([-+.\deE]+|nan)"
)
"""A line of verl's console logger, or of OpenRLHF's trainer."""
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
NOISE = re.compile(
    r"UserWarning|FutureWarning|DeprecationWarning|warnings\.warn|Platform override|Using blocking ray\.get"
    r"|Training Progress|\bstep:\d+ - |is_fx_tracing|^\s*$"
)
PHASES = (
    ("ray init kwargs", "starting Ray"),
    ("TaskRunnerV1", "starting verl's workers"),
    ("ready to fit", "validating the untrained model"),
    ("RolloutRayActor", "starting OpenRLHF's workers"),
)
"""What the first appearance of a text in the output says about where the run is."""


@dataclass(frozen=True)
class Progress:
    """What is known of a run so far; ``bar`` is verl's own, ``reward`` the mean of step ``step``."""

    phase: str = "importing the trainer"
    bar: str = ""
    step: int = 0
    reward: float = 0.0

    def line(self) -> str:
        """One line for people."""
        if not self.bar:
            return f"mean reward {self.reward:.2f} at step {self.step}" if self.step else f"{self.phase} …"
        return f"{self.bar}  mean reward {self.reward:.2f} at step {self.step}" if self.step else self.bar


def advance(progress: Progress, line: str) -> Progress:
    """The progress after one more line of output.

    >>> seen = advance(Progress(), "step:3 - actor/lr:0.1 - critic/score/mean:0.5 - x:1")
    >>> advance(seen, "(pid=1) Training Progress:  10%|#   | 3/30 [00:09<01:21, 3.0s/it]").line()
    'Training Progress:  10%|#   | 3/30 [00:09<01:21, 3.0s/it]  mean reward 0.50 at step 3'
    """
    if step := STEP.search(line):
        return replace(progress, step=int(step[1] or step[3]), reward=float(step[2] or step[4]))
    if bars := BAR.findall(line):
        return replace(progress, bar=bars[-1])
    for mark, phase in reversed(PHASES):
        if mark in line:
            later = [name for _, name in PHASES]
            is_new = progress.phase not in later or later.index(phase) > later.index(progress.phase)
            return replace(progress, phase=phase) if is_new else progress
    return progress


def relevant_lines(log: Path, most: int = 30) -> list[str]:
    """The last lines of a log, without colour codes, progress, metrics and well-known warnings."""
    with log.open(encoding="utf-8", errors="replace") as file:
        return _tail((COLOUR_CODES.sub("", line.rstrip()) for line in file), most)


def _tail(lines: Iterable[str], most: int) -> list[str]:
    return [line for line in lines if not NOISE.search(line)][-most:]
