"""What a report warns of: values that are off, too few prompts, too few segments; and numbers that no terminal cuts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from rredcot_plugin.report.corpus import FEW_PROMPTS, Corpus, Interval
from rredcot_plugin.report.findings import findings
from rredcot_plugin.report.plots import bias_by_step, reward_by_step
from rredcot_plugin.report.report_page import render_report
from rredcot_plugin.report.select import group_traces
from rredcot_plugin.report.statistics import Statistics
from rredcot_plugin.report.terminal_report import render_corpus
from rredcot_plugin.report.traces import ScoredSegment, Trace


def traces(
    values: Callable[[float], list[float]], *, prompts: int = 20, size: int = 8, step: int = 1, noise: float = 0.0
) -> list[Trace]:
    """Prompts of which a trace is right with a probability of its own; ``values`` makes V̂ after the prompt of it."""
    draw = np.random.default_rng(step)
    found = []
    for prompt in range(prompts):
        chance = draw.uniform(0.1, 0.9)
        rewards = (draw.random(size) < chance).astype(float)
        for reward in rewards:
            prior = (rewards.sum() - reward) / (size - 1)
            states = [prior, *(value + noise * draw.normal() for value in values(chance))]
            ends = [*states[1:], reward]
            parts = (ScoredSegment("x", 5, v, e - v, reward - v) for v, e in zip(states, ends, strict=True))
            found.append(Trace(step, f"{step}.{prompt}", f"{prompt} =", None, float(reward), tuple(parts)))
    return found


def found_in(some: list[Trace]) -> list[str]:
    numbers = Statistics.of(some)
    return findings(numbers.steps(), numbers.bias())


def test_values_that_are_right_are_no_finding() -> None:
    assert found_in(traces(lambda chance: [chance] * 3)) == []
    assert findings((), None) == []


def test_values_that_are_too_high_are_found() -> None:
    (only,) = found_in(traces(lambda chance: [chance + 0.15] * 3))
    assert "V̂ after the prompt is 0.1" in only
    assert "too high on average" in only
    (only,) = found_in(traces(lambda chance: [chance - 0.2] * 3))
    assert "too low on average" in only


def test_values_worse_than_a_constant_are_found() -> None:
    (only,) = found_in(traces(lambda chance: [chance] * 3, noise=0.7, prompts=60))
    assert only.startswith("V̂ is worse than a constant: its mean squared error is 0.")


def test_two_prompts_are_too_few_to_calibrate() -> None:
    found = found_in(traces(lambda chance: [chance] * 3, prompts=2))
    assert any("too few prompts here (2 at step 1)" in text for text in found)
    many = traces(lambda chance: [chance] * 3, prompts=FEW_PROMPTS)
    assert not any("too few" in text for text in found_in(many))
    steps = [*many, *traces(lambda chance: [chance] * 3, prompts=3, step=2)]
    assert any("at 1 of 2 steps (3 at step 2)" in text for text in found_in(steps))


def test_few_segments_name_a_segmenter() -> None:
    found = found_in(traces(lambda chance: [chance]))
    assert found[-1].startswith("A trace has 2.0 segments on average")
    assert "segmenter=newline" in found[-1]
    assert not any("segments on average" in text for text in found_in(traces(lambda chance: [chance] * 2)))


def test_the_interval_of_the_bias_counts_prompts() -> None:
    """As many equal traces as one likes say no more than one of them."""
    once = [t for i, t in enumerate(traces(lambda chance: [chance] * 3)) if i % 8 == 0]
    few, many = Statistics.of(once).bias(), Statistics.of(once * 10).bias()
    assert few is not None and many is not None
    assert few == pytest.approx(many)
    assert few.low < few.mean < few.high
    assert Statistics.of([]).bias() is None
    lone = Statistics.of(once[:1]).bias()
    assert lone is not None and math.isnan(lone.low)


def test_the_bias_is_drawn_and_the_prior_only_where_it_can_say_something() -> None:
    right = [*traces(lambda chance: [chance]), *traces(lambda chance: [chance], step=2)]
    steps = Statistics.of(right).steps()
    assert bias_by_step(steps).svg
    assert bias_by_step(steps[:1]).missing
    assert "V̂ of the prompt" not in str(reward_by_step(steps).legend)
    off = [Trace(t.step, t.uid, t.prompt, None, t.reward, (ScoredSegment("x", 1, 0.9, 0.0, 0.0),)) for t in right]
    assert "V̂ of the prompt" in str(reward_by_step(Statistics.of(off).steps()).legend)


def corpus_of(some: list[Trace]) -> Corpus:
    numbers = Statistics.of(some)
    groups = tuple(group_traces(some))
    return Corpus(
        ("a.jsonl",), groups, len(some), len(groups), True, numbers.steps(), numbers.histograms(),
        numbers.calibration(), bias=numbers.bias(),
    )  # fmt: skip


def test_page_and_terminal_tell_what_was_found() -> None:
    corpus = corpus_of(traces(lambda chance: [chance + 0.3]))
    out = StringIO()
    Console(file=out, width=300).print(render_corpus(corpus))
    for text in (render_report(corpus), out.getvalue()):
        assert "too high on average" in text
        assert "segments on average" in text


def test_eighty_columns_hold_every_number() -> None:
    corpus = corpus_of([t for step in (8, 999, 100_000) for t in traces(lambda chance: [chance] * 2, step=step)])
    out = StringIO()
    Console(file=out, width=80).print(render_corpus(corpus))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert max(cell_len(line.rstrip()) for line in lines) <= 80
    header = next(line for line in lines if line.startswith("step"))
    row = next(line for line in lines if line.startswith("100000"))
    assert header.rstrip().endswith("segments")
    assert len(row.split()) == 9


def test_rounding_is_no_finding() -> None:
    """V̂ is the same constant everywhere, or off by what six decimals leave out."""
    step = Statistics.of(traces(lambda chance: [chance] * 3)).steps()[0]
    same = replace(step, squared_error=0.21000000000000002, constant=0.21)
    assert findings([same], Interval(-4e-17, -4e-17, -4e-17)) == []
    assert findings([same], Interval(4e-7, 3e-7, 5e-7)) == []


def test_small_numbers_are_told_apart() -> None:
    step = Statistics.of(traces(lambda chance: [chance] * 3)).steps()[0]
    (error,) = findings([replace(step, squared_error=0.2546, constant=0.2512)], None)
    assert "is 0.255, that of the mean reward of a step 0.251." in error
    (bias,) = findings([step], Interval(0.0004, 0.0003, 0.0005))
    assert "0.0004 too high on average (95 % interval of V̂ − R: 0.0003 to 0.0005)" in bias
