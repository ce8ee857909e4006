"""Checks for segmenters of your own: `check_segmenter(my_segmenter)`.

from rredcot_plugin.testing import check_segmenter

def test_my_segmenter():
    check_segmenter(MySegmenter())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rredcot_plugin.segmenters.lookahead import find_lookahead
from rredcot_plugin.segmenters.trace import spans_of
from rredcot_plugin.types import MASKED, Rollouts, Segments

SAMPLES = (
    "",
    "4",
    "Let me think.\n1 + 2 = 3\n\nBut wait. So 4.\n#### 4",
    "<think>First, a.\n\nThen b. Hmm, no.</think>\nThe answer is \\boxed{7}.",
    "def f(x):\n    return x\n",
    "Here:\n```python\nimport os\n\n@cache\ndef f(x):\n    if x:\n        return 1\n    return 2\n\nprint(f(1))\n```",
    "Preis: 5 €, naïve 你好。然后 🙂🙂 So. Wait",
    "no answer and then it was cut off in the mid",
    "\n\n\n   \n\t\n",
    "####",
    "\ufffd\ufffd \x00\u202e \x1b[31m So\n",
    "\\boxed{" * 20,
    "``````\n```\n```",
    "a\n" * 300,
)
"""Responses that segmenters stumble over: empty, one token, only blanks, broken UTF-8, no answer, many lines."""


def sample_rollouts(texts: Sequence[str] = SAMPLES, seed: int = 0) -> Rollouts:
    """Rollouts with one token a UTF-8 byte, random padding, and masked tokens in between.

    Log-probs and entropies are random; the bytes of a character share its span.
    """
    rng = np.random.default_rng(seed)
    spans = [_byte_spans(text) for text in texts]
    masks = [_mask_with_gaps(len(s), rng) for s in spans]
    width = max(len(mask) for mask in masks) + 4
    response_mask = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, mask in enumerate(masks):
        left = int(rng.integers(0, width - len(mask) + 1))
        response_mask[row, left : left + len(mask)] = torch.from_numpy(mask)
    surprise = torch.from_numpy(rng.exponential(0.5, (len(texts), width))).float()
    return Rollouts(
        token_ids=torch.from_numpy(rng.integers(0, 256, (len(texts), width))),
        response_mask=response_mask,
        rewards=torch.zeros(len(texts), width),
        group_ids=[row // 2 for row in range(len(texts))],
        log_probs=-surprise,
        entropies=surprise.roll(1, dims=1),
        texts=list(texts),
        token_offsets=spans,
    )


def text_rollouts(texts: Sequence[str], outcomes: Sequence[float] | None = None, **fields: Any) -> Rollouts:
    """Rollouts of one group, a token a character, right-padded; the reward stands on the last character.

    ``outcomes`` are 0 unless given; ``fields`` are further fields of ``Rollouts``, or replace those made here.

    Raises:
        ValueError: outcomes that are not one for each text.
    """
    if isinstance(texts, str) or (outcomes is not None and len(outcomes) != len(texts)):
        got = "one text" if isinstance(texts, str) else f"{len(texts)} texts and {len(outcomes or ())} outcomes"
        raise ValueError(f"texts: expected a list of them, and as many outcomes if any, got {got}")
    T = max(1, *map(len, texts))
    lengths = torch.tensor([len(text) for text in texts])
    rewards = torch.zeros(len(texts), T)
    for row, outcome in enumerate(outcomes or ()):
        rewards[row, max(0, len(texts[row]) - 1)] = outcome
    made = {
        "token_ids": torch.tensor([[*map(ord, text), *[0] * (T - len(text))] for text in texts]),
        "response_mask": torch.arange(T)[None] < lengths[:, None],
        "rewards": rewards,
        "group_ids": [0] * len(texts),
        "texts": list(texts),
        "token_offsets": [[(i, i + 1) for i in range(len(text))] for text in texts],
    }
    return Rollouts(**{**made, **fields})


def check_segmenter(
    segmenter: Callable[[Rollouts], Segments], rollouts: Rollouts | None = None, *, exact: bool = True
) -> None:
    """Raise ``AssertionError`` naming the first rule that ``segmenter`` breaks, and where.

    The rules: a partition of exactly the unmasked tokens into consecutive segments (which ``Segments`` checks);
    no segment begins inside a character; the same input gives the same result and is left as it was; rows do
    not influence each other, and padding does not matter; every boundary is a stopping time: which segment a token
    belongs to, and where that begins, does not change with the token or anything after it. The last rule makes the
    policy gradient exact at λ = 1 (docs/reference/math.md); a segmenter that breaks it trains with a warning.

    Args:
        segmenter: anything that takes ``Rollouts`` and returns ``Segments``.
        rollouts: what to check it on, with texts; default: `sample_rollouts()`.
        exact: False leaves out the last rule, for segmenters that are not meant for training.

    Raises:
        ValueError: a class or a name instead of a segmenter; rollouts without tokens; what ``Segments`` refuses.
    """
    if isinstance(segmenter, type) or not callable(segmenter):
        raise ValueError(
            f"segmenter: expected an instance, got {segmenter!r}: call the class with its options, or build one by name "
            'with rr.get_segmenter("newline")'
        )
    given = rollouts if rollouts is not None else sample_rollouts()
    if given.token_offsets is not None:  # one for each column is as good as one for each unmasked token
        columns = [np.flatnonzero(row) for row in given.response_mask.cpu().numpy()]
        spans = [spans_of(own, at) for own, at in zip(given.token_offsets, columns, strict=True)]
        given = dataclasses.replace(given, token_offsets=spans)
    if given.token_ids is None:
        raise ValueError("rollouts: expected token_ids to check a segmenter on, got None")
    before = given.token_ids.clone(), given.response_mask.clone(), list(given.texts or [])
    result = segmenter(given)
    _check_partition(result, given)
    _check_characters(result, given)
    _expect(_same(segmenter(given), result), "a second call gave another result")
    after = given.token_ids, given.response_mask, list(given.texts or [])
    unchanged = torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2] == after[2]
    _expect(unchanged, "the rollouts were changed")
    order = list(reversed(range(given.batch_size)))
    permuted = segmenter(_rows(given, order))
    _expect(_same(permuted, _take(result, order)), "reordering the rows changed a row's segments")
    for row in range(given.batch_size):
        alone = segmenter(_rows(given, [row]))
        _expect(_same(alone, _take(result, [row])), f"row {row} is cut differently alone than in the batch")
    for left, right in ((3, 0), (0, 3)):
        padded = segmenter(_padded(given, left, right))
        ids = torch.nn.functional.pad(result.segment_ids, (left, right), value=MASKED)
        same = torch.equal(padded.segment_ids, ids) and torch.equal(padded.num_segments, result.num_segments)
        _expect(same, f"{left} columns of padding to the left, {right} to the right changed the segments")
    if exact:
        _check_stopping_times(segmenter, given)


def _check_stopping_times(segmenter: Callable[[Rollouts], Segments], given: Rollouts) -> None:
    """With entropies and, where both are there, without: then log-probs stand in for them."""
    needed = getattr(segmenter, "needs", ())
    alone = given.entropies is not None and given.log_probs is not None and "entropies" not in needed
    for rollouts in (given, dataclasses.replace(given, entropies=None)) if alone else (given,):
        found = find_lookahead(segmenter, rollouts, rows=len(SAMPLES))
        _expect(found is None, f"a boundary depends on what comes after it: {found}")


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise AssertionError(f"segmenter: {complaint}")


def _check_partition(result: Segments, rollouts: Rollouts) -> None:
    _expect(isinstance(result, Segments), f"expected Segments, got {type(result).__name__}")
    shape, expected = tuple(result.segment_ids.shape), tuple(rollouts.response_mask.shape)
    _expect(shape == expected, f"expected segment_ids of shape {expected}, got {shape}")
    wrong = ((result.segment_ids >= 0) != rollouts.response_mask).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        found = "no" if rollouts.response_mask[row, column] else "a"
        kind = "unmasked" if rollouts.response_mask[row, column] else "masked"
        raise AssertionError(f"segmenter: row {row}, column {column} is {kind} and has {found} segment")


def _check_characters(result: Segments, rollouts: Rollouts) -> None:
    for row, spans in enumerate(rollouts.token_offsets or []):
        ids = result.segment_ids[row][rollouts.response_mask[row]].tolist()
        for i in range(1, len(ids)):
            if ids[i] != ids[i - 1]:
                whole = spans[i][0] >= spans[i - 1][1]
                _expect(whole, f"row {row}: segment {ids[i]} begins inside the character at {spans[i][0]}")


def _byte_spans(text: str) -> list[tuple[int, int]]:
    return [(i, i + 1) for i, character in enumerate(text) for _ in character.encode("utf-8", "replace")]


def _mask_with_gaps(tokens: int, rng: np.random.Generator) -> np.ndarray:
    """``tokens`` true entries with a stretch of false ones somewhere between them."""
    mask = np.ones(tokens, dtype=bool)
    return np.insert(mask, int(rng.integers(1, tokens)), np.zeros(3, dtype=bool)) if tokens > 1 else mask


def _same(a: Segments, b: Segments) -> bool:
    return torch.equal(a.segment_ids, b.segment_ids) and torch.equal(a.num_segments, b.num_segments)


def _take(segments: Segments, rows: list[int]) -> Segments:
    return Segments(segments.segment_ids[rows], segments.num_segments[rows])


def _rows(rollouts: Rollouts, rows: list[int]) -> Rollouts:
    def pick(values: Any) -> Any:
        if values is None:
            return None
        return values[rows] if isinstance(values, torch.Tensor) else [values[row] for row in rows]

    return Rollouts(**{f.name: pick(getattr(rollouts, f.name)) for f in dataclasses.fields(Rollouts)})


def _padded(rollouts: Rollouts, left: int, right: int) -> Rollouts:
    def pad(values: Any) -> Any:
        is_table = isinstance(values, torch.Tensor) and values.ndim == 2
        return torch.nn.functional.pad(values, (left, right)) if is_table else values

    return Rollouts(**{f.name: pad(getattr(rollouts, f.name)) for f in dataclasses.fields(Rollouts)})
