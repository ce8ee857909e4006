"""Do states get the reward that their value promises? Bins of V̂ with the reward that followed, in one pass."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from rredcot_plugin.report.corpus import CalibrationBin

MOST_BINS = 10
MOST_PROMPTS = 65_536
"""Prompts with sums of their own; further ones share those by their hash, as if they were one prompt."""

BUFFERED = 65_536
"""States after which the bins are fixed; they are chosen from these states."""

NARROWEST = 1e-12
"""Width of a bin, at least; values are dumped with 6 decimals."""

LEVEL = 0.95


class Reliability:
    """Sums of values and rewards by bin of V̂ and by prompt.

    In a bin, prompt g has n_g states whose rewards sum to s_g. With G prompts and N = Σ n_g the mean reward is the
    ratio m = Σ s_g / N, and with prompts as clusters its variance is

        G / (G − 1) · Σ_g (s_g − m·n_g)² / N².

    The interval is m ± t·√variance with the 97.5 % quantile of Student's t of G − 1 degrees of freedom, cut to the
    range of all rewards. Where no prompt deviates at all that would be a point; then it reaches as far as one of G
    prompts deviating unseen allows: (1 − 0.025^(1/G)) times the range. One prompt alone gives no interval (NaN).
    """

    def __init__(self) -> None:
        self._edges: np.ndarray | None = None
        self._waiting: list[tuple[list[float], list[float], int]] = []
        self._num_waiting = 0
        self._rows: dict[bytes, int] = {}
        self._states = np.zeros((0, MOST_BINS))
        self._rewards = np.zeros((0, MOST_BINS))
        self._values = np.zeros(MOST_BINS)
        self._low, self._high = math.inf, -math.inf
        self._least, self._most = math.inf, -math.inf

    def add(self, values: Sequence[float], followed: Sequence[float], prompt: str) -> None:
        """The states of one trace and the reward from each on; those of which one is unknown are left out."""
        pairs = [pair for pair in zip(values, followed, strict=True) if all(map(math.isfinite, pair))]
        if not pairs:
            return
        known, rewards = map(list, zip(*pairs, strict=True))
        self._low, self._high = min(self._low, *known), max(self._high, *known)
        self._least, self._most = min(self._least, *rewards), max(self._most, *rewards)
        self._waiting.append((known, rewards, self._row(prompt)))
        self._num_waiting += len(known)
        if self._num_waiting >= BUFFERED:
            self._flush()

    def finish(self) -> tuple[CalibrationBin, ...]:
        """The bins that hold states, from low to high values."""
        if self._waiting:
            self._flush()
        if self._edges is None:
            return ()
        return tuple(self._bin(i) for i in range(len(self._edges) - 1) if self._states[:, i].any())

    def _row(self, prompt: str) -> int:
        digest = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest not in self._rows and len(self._rows) >= MOST_PROMPTS:
            return int.from_bytes(digest, "big") % MOST_PROMPTS
        return self._rows.setdefault(digest, len(self._rows))

    def _flush(self) -> None:
        values = np.array([value for known, _, _ in self._waiting for value in known])
        lengths = [len(known) for known, _, _ in self._waiting]
        rewards = np.array([reward for _, followed, _ in self._waiting for reward in followed])
        rows = np.repeat([row for _, _, row in self._waiting], lengths)
        self._waiting, self._num_waiting = [], 0
        if self._edges is None:
            self._edges = bin_edges(self._low, self._high)
        if len(self._rows) > len(self._states):
            more = ((0, max(2 * len(self._rows), 64) - len(self._states)), (0, 0))
            self._states, self._rewards = np.pad(self._states, more), np.pad(self._rewards, more)
        bins = np.searchsorted(self._edges, values, side="right") - 1
        bins = bins.clip(0, len(self._edges) - 2)
        np.add.at(self._states, (rows, bins), 1)
        np.add.at(self._rewards, (rows, bins), rewards)
        np.add.at(self._values, bins, values)

    def _bin(self, index: int) -> CalibrationBin:
        assert self._edges is not None
        own = self._states[:, index] > 0
        counts, sums = self._states[own, index], self._rewards[own, index]
        total = counts.sum()
        mean = float(sums.sum() / total)
        low, high = _interval(counts, sums, self._least, self._most)
        first, last = index == 0, index == len(self._edges) - 2
        return CalibrationBin(
            low=min(float(self._edges[index]), self._low) if first else float(self._edges[index]),
            high=max(float(self._edges[index + 1]), self._high) if last else float(self._edges[index + 1]),
            states=int(total),
            prompts=int(own.sum()),
            value=float(self._values[index] / total),
            reward=mean,
            reward_low=low,
            reward_high=high,
        )


def bin_edges(low: float, high: float) -> np.ndarray:
    """Tenths of [0, 1] if the values lie in it, else at most ``MOST_BINS`` bins of a round width around them.

    >>> bin_edges(-1.0, 0.5).tolist()
    [-1.0, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6]
    """
    if low >= 0 and high <= 1:
        return np.arange(11) / 10
    smallest = max((high - low) / MOST_BINS, max(abs(low), abs(high)) * 1e-6, NARROWEST)
    power = 10.0 ** math.floor(math.log10(smallest))
    for width in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
        if last - first <= MOST_BINS:
            break
    return np.array([float(f"{i * width:.12g}") for i in range(first, max(last, first + 1) + 1)])


def _interval(counts: np.ndarray, sums: np.ndarray, least: float, most: float) -> tuple[float, float]:
    prompts, total = len(counts), counts.sum()
    if prompts < 2:
        return math.nan, math.nan
    mean = sums.sum() / total
    deviations = sums - mean * counts
    if np.abs(deviations).max() <= 1e-9 * (most - least):
        width = (most - least) * (1 - ((1 - LEVEL) / 2) ** (1 / prompts))
    else:
        width = half_width(counts, sums)
    return max(least, float(mean - width)), min(most, float(mean + width))


def half_width(counts: np.ndarray, sums: np.ndarray) -> float:
    """Half of the 95 % interval of Σ sums / Σ counts with clusters as ``Reliability`` has them; NaN for one cluster."""
    clusters = len(counts)
    if clusters < 2:
        return math.nan
    deviations = sums - sums.sum() / counts.sum() * counts
    error = math.sqrt(clusters / (clusters - 1) * float((deviations**2).sum())) / float(counts.sum())
    return student_t(clusters - 1) * error


def student_t(freedom: int) -> float:
    """97.5 % quantile of Student's t, exact for 1 and 2 degrees of freedom, to 0.5 % for more (Cornish and Fisher).

    >>> [round(student_t(n), 2) for n in (1, 2, 10, 1000)]
    [12.71, 4.3, 2.23, 1.96]
    """
    p = (1 + LEVEL) / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z, n = NormalDist().inv_cdf(p), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
