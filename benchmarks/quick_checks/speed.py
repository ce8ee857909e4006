"""Ratios of CPU seconds, each within one run and one thread, so that a slower machine has the same ones.

Two things are compared with each other in turns: passes with probes against the plain pass, ``assign_credit`` against
the plain pass and against itself, segmenters against each other. A machine whose matrix products are faster for its
Python moves the second one; that is what the factor to FAR OUTSIDE is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import assign_credit as credit_benchmark
import numpy as np
import segmenters as segmenter_benchmark
import torch
from overhead_tables import of_kind, ratios
from probe_passes import ProbeSizes, build_model, make_passes, rotated, time_round
from record import with_interval

import rredcot_plugin as rr
from quick_checks.committed import Committed, Interval
from quick_checks.verdicts import Finding, nothing, slower

CELL = ProbeSizes(tokens=512, probes=16, probe_tokens=12)
ROUNDS = 5
CREDIT_TRACES, CREDIT_TOKENS = 1024, 2048
"""A size of assign_credit.json: the fits of calibration cost the same for fewer traces, so the ratio would differ."""
CREDIT_ROUNDS = 5
SEGMENTER_TRACES, SEGMENTER_TOKENS = 8, 8192
MEASURABLE = 0.05
"""Of the segmenters' mean: a shorter time, a millisecond here, is decided by the state of the machine's memory."""


@torch.no_grad()
def check_overhead(committed: Committed) -> list[Finding]:
    """The pass with probes over the plain pass."""
    passes = make_passes(CELL, build_model())
    expected = passes["cached"]()
    names = ["plain", "cached", "packed"]
    rounds = [time_round(passes, rotated(names, i), expected) for i in range(ROUNDS)]
    found = []
    for name in ("cached", "packed"):
        measured = with_interval([row[name]["cpu"] / row["plain"]["cpu"] for row in rounds])
        entry = f"{name}_{CELL.tokens}_{CELL.probes}_{CELL.probe_tokens}_measured"
        title = f"{name} over plain, T={CELL.tokens} K={CELL.probes} A={CELL.probe_tokens}"
        found.append(slower(title, measured, committed.entry("plan_check", entry), f"plan_check.json: {entry}"))
        source = f"overhead.json: raw.cells, T={CELL.tokens} K={CELL.probes} A={CELL.probe_tokens}, cpu"
        found.append(slower(title, measured, _overhead_cell(committed, name), source))
    return found


def _overhead_cell(committed: Committed, name: str) -> Interval | None:
    """The committed ratio of the cell of this size; None where overhead.json does not have it."""
    record = committed.record("overhead")
    cells = [] if record is None else of_kind(list(record["raw"]["cells"].values()), "time")
    sizes = (CELL.tokens, CELL.probes, CELL.probe_tokens)
    own = [cell for cell in cells if (cell["tokens"], cell["probes"], cell["probe_tokens"]) == sizes]
    return with_interval(ratios(own[0], name, "cpu")) if own else None


@torch.no_grad()
def check_assign_credit(committed: Committed) -> list[Finding]:
    """Credit a token over the plain pass a token; with values and with probed proposals over credit from nothing."""
    rollouts = credit_benchmark.make_rollouts(CREDIT_TRACES, CREDIT_TOKENS)
    extras = {case: credit_benchmark.given(case, rollouts) for case in credit_benchmark.FIRST_STEP}
    runs: dict[str, Callable[[], Any]] = {
        case: lambda case=case: rr.assign_credit(rollouts, **extras[case]) for case in extras
    }
    seconds = in_turns(runs | {"plain": make_passes(CELL, build_model())["plain"]}, CREDIT_ROUNDS)
    tokens = CREDIT_TRACES * CREDIT_TOKENS
    base, *others = credit_benchmark.FIRST_STEP
    a_token = [
        credit / tokens / (plain / CELL.tokens)
        for credit, plain in zip(seconds[base], seconds["plain"], strict=True)
    ]
    source = "assign_credit.json: cpu_seconds_at_2048_tokens; plan_check.json: raw.cells, plain"
    found = [slower("assign_credit over plain pass, a token", with_interval(a_token), _a_token(committed), source)]
    for case in others:
        measured = with_interval([own / other for own, other in zip(seconds[case], seconds[base], strict=True)])
        known = quotient(committed, f"{case}_cpu_seconds", f"{base}_cpu_seconds")
        found.append(
            slower(f"assign_credit, {case} over {base}", measured, known, "assign_credit.json: *_cpu_seconds")
        )
    return found


def _a_token(committed: Committed) -> Interval | None:
    """Committed seconds of credit a token over those of the plain pass at the size of ``CELL``."""
    credit, check = committed.record("assign_credit"), committed.record("plan_check")
    if credit is None or check is None or (known := credit["summary"].get("cpu_seconds_at_2048_tokens")) is None:
        return None
    cells = [cell for cell in check["raw"]["cells"] if cell["tokens"] == CELL.tokens and "seconds" in cell]
    if not cells:
        return None
    plain = with_interval([run["cpu"] / CELL.tokens for run in cells[0]["seconds"]["plain"]])
    return divided({end: x / (credit["settings"]["traces"] * 2048) for end, x in known.items()}, plain)


def quotient(committed: Committed, over: str, under: str) -> Interval | None:
    record = committed.record("assign_credit")
    if record is None or not {over, under} <= set(record["summary"]):
        return None
    return divided(record["summary"][over], record["summary"][under])


def divided(over: Mapping[str, float], under: Mapping[str, float]) -> Interval:
    """Medians divided, with the widest interval that both allow."""
    return {
        "value": over["value"] / under["value"],
        "low": over["low"] / under["high"],
        "high": over["high"] / under["low"],
    }


def check_segmenters(committed: Committed) -> list[Finding]:
    """Each segmenter over the geometric mean of all of them."""
    record, names = committed.record("segmenters"), rr.list_segmenters()
    source = "segmenters.json: raw"
    if record is None:
        return [nothing("segmenters over their mean", source)]
    known = {name: record["raw"][name][str(SEGMENTER_TOKENS)] for name in names if name in record["raw"]}
    rollouts = segmenter_benchmark.make_rollouts(SEGMENTER_TRACES, SEGMENTER_TOKENS)
    built = {name: rr.get_segmenter(name) for name in known}
    seconds = in_turns({name: lambda one=one: one(rollouts) for name, one in built.items()}, ROUNDS)
    measured, before = over_geometric_mean(seconds), over_geometric_mean(known)
    floored = {name: {**own, "high": max(own["high"], MEASURABLE)} for name, own in before.items()}
    found = [slower(f"{name} over the mean", measured[name], floored[name], f"{source}.{name}") for name in known]
    return [*found, *(nothing(f"{name} over the mean", source) for name in names if name not in known)]


def over_geometric_mean(seconds: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Within each round, then the median over rounds with its interval."""
    table = np.array(list(seconds.values()))
    relative = table / np.exp(np.log(table).mean(axis=0))
    return {name: with_interval(row.tolist()) for name, row in zip(seconds, relative, strict=True)}


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every run by round, after one round that is not counted; the order rotates."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-1, rounds):
        for name in rotated(list(runs), max(0, number)):
            start = time.process_time()
            runs[name]()
            if number >= 0:
                seconds[name].append(time.process_time() - start)
    return seconds
