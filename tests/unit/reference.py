"""Slow, obvious versions of the vectorised operations, and small batches to run both on."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from rredcot_plugin import Rollouts, Segments
from rredcot_plugin.testing import text_rollouts as text_rollouts


def gae_reference(deltas: list[float], lam: float) -> list[float]:
    return [sum(lam ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]


def redistribute_reference(values: list[float], outcome: float) -> list[float]:
    following = [*values[1:], outcome]
    return [b - a for a, b in zip(values, following, strict=True)]


@st.composite
def batches(draw, dtype=torch.float32):
    """Ragged batches: left and right padding, interior masks, empty rows, groups of one, equal rewards."""
    B, T = draw(st.integers(1, 8)), draw(st.integers(1, 14))
    bits = draw(st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B))
    mask = torch.tensor(bits)
    rewards = torch.zeros(B, T, dtype=dtype)
    for row in range(B):
        real = mask[row].nonzero()
        if len(real):
            rewards[row, real[-1, 0]] = draw(st.sampled_from([0.0, 1.0, -1.0, 0.5]))
    groups = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=B, max_size=B))
    log_probs = -torch.rand(B, T, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return Rollouts(torch.zeros(B, T, dtype=torch.int64), mask, rewards, groups, log_probs=log_probs)


def random_values(segments: Segments, seed: int = 0) -> torch.Tensor:
    shape = (len(segments.num_segments), segments.max_segments)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pieces(rollouts: Rollouts, segments: Segments, row: int = 0) -> list[str]:
    """The text of each segment of a row of ``text_rollouts``."""
    ids = segments.segment_ids[row].tolist()
    text = rollouts.texts[row]
    return [
        "".join(c for c, i in zip(text, ids, strict=False) if i == k)
        for k in range(int(segments.num_segments[row]))
    ]
