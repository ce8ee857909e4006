"""What a reader should know before anything else: values that are off, too few prompts, too few segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from rredcot_plugin.adapter.dump import MAX_ROWS
from rredcot_plugin.report.corpus import FEW_PROMPTS, Interval, StepSummary
from rredcot_plugin.report.text import plain

FEW_SEGMENTS = 3
"""Mean segments of a trace below which there is little credit within traces."""


ROUNDING = 1e-6
"""Dumps hold six decimals: a mean up to this is none."""


def findings(
    steps: Sequence[StepSummary], bias: Interval | None, *, calibrated: bool = True, fitted: bool = True
) -> list[str]:
    """Sentences about what is wrong with the numbers of these steps, each with what to do; none if nothing is.

    ``calibrated``: whether the values are, or may be; a bias is expected of raw ones. ``fitted``: whether that is by a fit on
    other prompts, which those of a critic, say, do not need.
    """
    scored = [step for step in steps if math.isfinite(step.squared_error)]
    of_fit = [*(_few_prompts(scored) if fitted else []), *_bias(bias)] if calibrated else []
    return [*_errors(scored), *of_fit, *_segments(scored)]


def _errors(steps: Sequence[StepSummary]) -> list[str]:
    error, constant = _mean(s.squared_error for s in steps), _mean(s.constant for s in steps)
    if not error > constant or _digits(error) == _digits(constant):
        return []
    return [
        f"V̂ is worse than a constant: its mean squared error is {_digits(error)}, that of the mean reward of a step "
        f"{_digits(constant)}."
    ]


def _few_prompts(steps: Sequence[StepSummary]) -> list[str]:
    few = [step for step in steps if 0 < step.prompts < FEW_PROMPTS and not _may_be_cut(step)]
    if not few:
        return []
    least = min(few, key=lambda step: step.prompts)
    where = f"at {len(few):,} of {len(steps):,} steps" if len(steps) > 1 else "here"
    return [
        f"Calibration had too few prompts {where} ({least.prompts} at step {least.step}): V̂ of a trace is fitted on other "
        f"prompts, so fewer than {FEW_PROMPTS} give rough values. Use more prompts per step, or calibrate=none and "
        "read V̂ as the probability of answering right at once."
    ]


def _may_be_cut(step: StepSummary) -> bool:
    """Whether a dump had no room for one group more, so that the step may have had more prompts."""
    return step.traces + step.traces / step.prompts > MAX_ROWS


def _bias(bias: Interval | None) -> list[str]:
    if bias is None or not (bias.low > 0 or bias.high < 0) or abs(bias.mean) <= ROUNDING:
        return []
    side = "high" if bias.mean > 0 else "low"
    return [
        f"V̂ after the prompt is {_digits(abs(bias.mean))} too {side} on average (95 % interval of V̂ − R: "
        f"{_digits(bias.low)} to {_digits(bias.high)}): check calibrate and value_estimator."
    ]


def _segments(steps: Sequence[StepSummary]) -> list[str]:
    known = [(step.segments, step.traces) for step in steps if math.isfinite(step.segments)]
    total = sum(traces for _, traces in known)
    mean = sum(segments * traces for segments, traces in known) / total if total else math.inf
    if mean >= FEW_SEGMENTS:
        return []
    return [
        f"A trace has {plain(mean, 1)} segments on average, which leaves little to credit within it. Use segmenter=newline "
        "for reasoning in lines, sentence for prose, fixed where neither is found; min_segment_tokens and max_segments "
        "also matter."
    ]


def _digits(number: float) -> str:
    """Three significant digits at least, so that two numbers that differ are seen to.

    >>> _digits(0.2546), _digits(-0.0031), _digits(7878.64)
    ('0.255', '−0.0031', '7879')
    """
    return f"{number:.3g}".replace("-", "−") if abs(number) < 1000 else plain(number, 0)


def _mean(numbers: Iterable[float]) -> float:
    known = [number for number in numbers if math.isfinite(number)]
    return fmean(known) if known else math.nan
