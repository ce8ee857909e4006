"""Fingerprints of what an agent did: equal where it made the same calls and was answered the same, whatever it said between."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.segmenters.trace import spans_of
from rredcot_plugin.text.tool_calls import calls_in
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


def action_fingerprints(rollouts: Rollouts, segments: Segments) -> Int[Tensor, "B S"]:
    """Of the actions before each state and the environment's answers to them, in their order; 64 bits, those of an int64.

    An action is a finished call of a tool (`text.tool_calls`), in one way of writing. Where the model has made none before
    the environment answers, all that it said is the action, without blanks around it. A number says of a state nothing but what
    stands before it: calls count from where they have ended, and what is said, once it has been answered.

    Raises:
        ValueError: rollouts without texts.
    """
    if rollouts.texts is None or rollouts.token_offsets is None:
        raise ValueError("texts: actions are read off the texts, but the rollouts have none; give Rollouts.texts")
    found = np.zeros(segments.exists.shape, dtype=np.uint64)
    mask, counts, starts = rollouts.response_mask.cpu(), segments.num_segments.tolist(), segments.starts.cpu()
    before = torch.nn.functional.pad(mask.cumsum(dim=1), (1, 0)).gather(1, starts).tolist()
    for row, count in enumerate(counts):
        columns = mask[row].nonzero()[:, 0].numpy()
        spans = spans_of(rollouts.token_offsets[row], columns)
        ends, hashes = _events(rollouts.texts[row], spans, columns)
        at = [int(spans[tokens][0]) for tokens in before[row][:count]]
        found[row, :count] = hashes[np.searchsorted(ends, at, side="right")]
    return torch.from_numpy(found.view(np.int64)).to(segments.segment_ids.device)


def _events(text: str, spans: Any, columns: Any) -> tuple[Any, Any]:
    """The characters by which each action or answer is over, and the fingerprints of all up to there, that of none first."""
    gaps = [0, *(np.flatnonzero(np.diff(columns) > 1) + 1).tolist(), len(columns)]
    ends, hashes, latest = [], [b""], b""
    for first, behind in pairwise(gaps):
        if first == behind:  # a row without a token of the model's
            continue
        begin, end = int(spans[first][0]), int(spans[behind - 1][1])
        calls = [(begin + at, call) for at, call in calls_in(text[begin:end])]
        if behind < len(columns):
            over = int(spans[behind][0])
            said = [] if calls else [(over, text[begin:end].strip())]
            calls = [*calls, *said, (over, text[end:over].strip())]
        for at, event in calls:
            latest = hashlib.blake2b(event.encode(errors="surrogatepass"), digest_size=8, key=latest).digest()
            ends.append(at)
            hashes.append(latest)
    numbers = [int.from_bytes(own, "little") for own in hashes]
    return np.array(ends, dtype=np.int64), np.array(numbers, dtype=np.uint64)
