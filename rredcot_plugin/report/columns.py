"""Columns of the tables that the page and the terminal share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rredcot_plugin.report.corpus import CalibrationBin, StepSummary
from rredcot_plugin.report.text import column


def bin_rewards(bins: Sequence[CalibrationBin], least: int) -> tuple[list[str], list[str]]:
    """Mean rewards of bins and their intervals, all with the same decimals."""
    texts = column((n for b in bins for n in (b.reward, b.reward_low, b.reward_high)), least)
    return texts[::3], [f"{low} to {high}" for low, high in zip(texts[1::3], texts[2::3], strict=True)]


def step_numbers(steps: Sequence[StepSummary], least: int) -> list[list[str]]:
    """Columns of reward, its deviation, V̂ of the prompt, bias and squared error, each with the decimals it needs; of the
    last one three at least."""
    bias = [step.bias.mean if step.bias is not None else math.nan for step in steps]
    rewards = ([s.reward for s in steps], [s.reward_std for s in steps], [s.value for s in steps])
    errors = column((s.squared_error for s in steps), max(3, least))
    return [*(column(numbers, least) for numbers in (*rewards, bias)), errors]
