"""Rollouts that fork: enumeration of a policy over three bits, and the benchmark itself at tiny sizes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import forks

Trace = tuple[int, ...]

BITS = 3
LOGITS = torch.tensor([0.3, -0.5, 0.8, 0.1, -0.2, 0.6, -0.9], dtype=torch.float64)
"""One for every prefix of fewer than three bits, in the order of ``number``."""
TRACES = list(itertools.product((0, 1), repeat=BITS))
REWARDS = dict(zip(TRACES, (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0), strict=True))
BASE = 0.37  # of other rollouts, any number will do


def number(prefix: Trace) -> int:
    return (1 << len(prefix)) - 1 + int("0" + "".join(map(str, prefix)), 2)


def chance(trace: Trace, first: int = 0) -> float:
    found = 1.0
    for t in range(first, BITS):
        one = float(torch.sigmoid(LOGITS[number(trace[:t])]))
        found *= one if trace[t] else 1 - one
    return found


def slope(trace: Trace, t: int) -> np.ndarray:
    """∇ log π of the bit at t."""
    found = np.zeros(len(LOGITS))
    at = number(trace[:t])
    found[at] = trace[t] - float(torch.sigmoid(LOGITS[at]))
    return found


def expected(way: str, place: Callable[[Trace], int], count: int) -> np.ndarray:
    """E[ĝ] of one rollout and its siblings, over all that can happen; every bit is a segment."""
    total = np.zeros(len(LOGITS))
    for trace in TRACES:
        at = place(trace)
        after = [other for other in TRACES if other[:at] == trace[:at]] if at else []
        for siblings in itertools.product(after, repeat=count if at else 0):
            weight = chance(trace) * float(np.prod([chance(other, at) for other in siblings]))
            slopes = [slope(trace, t) for t in range(BITS)]
            pieces = []
            for other in siblings:
                pieces.append(list(range(len(slopes) - BITS, len(slopes) - BITS + BITS - at)))
                slopes += [slope(other, t) for t in range(at, BITS)]
            setup = SimpleNamespace(
                rollout=lambda prompt, visit, trace=trace: (REWARDS[trace], list(range(BITS))),
                baselines=np.full((1, 1), BASE),
                pieces=[SimpleNamespace(number=range(BITS))],
            )
            rewards = np.array([REWARDS[other] for other in siblings])
            tree = SimpleNamespace(at=[at], siblings=[list(range(len(siblings)))], pieces=pieces, rewards=rewards)
            for piece, advantage in forks.credit(way, setup, 0, 0, tree, count):  # type: ignore[arg-type]
                total += weight * advantage * slopes[piece]
    return total


TRUE = sum(chance(trace) * (REWARDS[trace] - BASE) * sum(slope(trace, t) for t in range(BITS)) for trace in TRACES)
STOPPING = {
    "fixed": lambda trace: 1,
    "by what was written": lambda trace: 1 if trace[0] else 2,
    "sometimes": lambda trace: 2 if trace[0] == trace[1] else 0,
}


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("way", ["tree", "sibling", "budget"])
@pytest.mark.parametrize("place", list(STOPPING))
def test_a_fork_at_a_stopping_time_leaves_the_gradient_exact(way: str, place: str, count: int) -> None:
    found = expected(way, STOPPING[place], count)
    np.testing.assert_allclose(found, TRUE, atol=1e-12)


@pytest.mark.parametrize("way", ["tree", "budget"])
def test_a_fork_that_looks_ahead_does_not(way: str) -> None:
    def fooled(trace: Trace) -> int:
        return 1 if trace[2] else 0  # the last bit is not written yet

    found = expected(way, fooled, 1)
    assert np.linalg.norm(found - TRUE) > 0.02 * np.linalg.norm(TRUE)


def test_it_runs_resumes_and_counts_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "forks.json"
    words = [
        "forks.py",
        "--quick",
        "--families",
        "sums",
        "--cache",
        str(tmp_path / "cache"),
        "--output",
        str(output),
    ]
    monkeypatch.setattr(sys, "argv", words)
    summaries = []
    for _ in range(2):
        forks.main()
        summaries.append(json.loads(output.read_text())["summary"])
    assert summaries[0] == summaries[1]  # the second one is made of what the first one kept
    tokens = {key: entry["value"] for key, entry in summaries[0].items() if "/tokens/" in key}
    assert len(tokens) == 8
    for place in ("early", "middle", "late", "unsure"):
        assert 1 < tokens[f"sums/tokens/{place}_1"] < tokens[f"sums/tokens/{place}_3"] < 4
    assert "signal over variance per token" in capsys.readouterr().out
