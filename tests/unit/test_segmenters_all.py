"""What holds for every segmenter: the checker, options, partitions, time, and what it reads."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.segmenters.trace import Trace
from rredcot_plugin.testing import check_segmenter
from tests.unit.reference import pieces, text_rollouts


@pytest.mark.parametrize("name", rr.list_segmenters())
def test_every_segmenter_conforms(name: str) -> None:
    exact = not name.endswith("_retrospective")
    check_segmenter(rr.get_segmenter(name), exact=exact)
    if name != "none":
        check_segmenter(rr.get_segmenter(name, min_segment_tokens=3, max_segments=4), exact=exact)


class Careless:
    """Cuts rows of one batch by the longest of them, masked tokens included."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        ids = torch.zeros_like(rollouts.token_ids)
        return rr.Segments(ids, torch.ones(len(ids), dtype=torch.int64))


class Greedy:
    """Halves every row by its column, and so depends on padding."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        half = torch.arange(rollouts.token_ids.shape[1]) >= rollouts.token_ids.shape[1] // 2
        raw = torch.where(rollouts.response_mask, half.long(), -1)
        first = torch.where(raw >= 0, raw, 9).amin(dim=1, keepdim=True)
        ids = torch.where(raw >= 0, raw - first, -1)
        return rr.Segments(ids, ids.amax(dim=1) + 1)


def test_the_checker_names_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="is masked and has a segment"):
        check_segmenter(Careless())
    with pytest.raises(AssertionError, match=r"character|padding|alone|reordering"):
        check_segmenter(Greedy())


def test_bad_options_are_named() -> None:
    for name, key, value in (
        ("entropy", "quantile", 1.5),
        ("probability", "threshold", "high"),
        ("probability", "interval", 0),
        ("newline_entropy", "target_segments", 0),
        ("keyword", "keywords", "Wait"),
        ("sentence", "answer_markers", ["boxd"]),
        ("adaptive", "threshold", 0),
        ("adaptive_retrospective", "penalty", 0),
        ("newline", "max_response_tokens", 0),
        ("adaptive", "bin_tokens", 0),
        ("fixed", "tokens", True),
    ):
        with pytest.raises(ValueError, match=key):
            rr.get_segmenter(name, **{key: value})


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab.\n #W€\u202e`@ef ", max_size=40), min_size=1, max_size=4),
    st.sampled_from(["none", "fixed", "newline", "hybrid", "paragraph", "sentence", "keyword", "code", "turn"]),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_every_segmenter_partitions_anything(texts: list[str], name: str, least: int, most: int) -> None:
    options = {} if name == "none" else {"min_segment_tokens": least, "max_segments": most}
    rollouts = text_rollouts(texts)
    segments = rr.get_segmenter(name, **options)(rollouts)  # Segments checks the partition itself
    assert ((segments.segment_ids >= 0) == rollouts.response_mask).all()
    if name != "none":
        assert int(segments.num_segments.max()) <= most
    for row, text in enumerate(texts):
        assert "".join(pieces(rollouts, segments, row)) == text


@pytest.mark.parametrize(
    "name", [name for name in rr.list_segmenters() if name not in ("none", "turn", "adaptive_retrospective")]
)
@pytest.mark.parametrize(
    "unit", ["a\n", "\n", "\r\n", "\n    ", " ", "\t", "```\n", "```", ".", "\\boxed{", "####", '."', "\n ```"]
)
def test_no_text_costs_more_than_linear_time(name: str, unit: str) -> None:
    """A quadratic search needs sixteen times as long for four times as many characters, and seconds for these."""
    segmenter = rr.get_segmenter(name)
    least = []
    for characters in (8_000, 32_000):
        text = unit * (characters // len(unit))
        rollouts = text_rollouts([text], log_probs=-torch.rand(1, len(text)))
        seconds = []
        for _ in range(3):
            start = time.process_time()
            segments = segmenter(rollouts)
            seconds.append(time.process_time() - start)
        assert int(segments.num_segments[0]) <= 64
        least.append(min(seconds))
    assert least[1] < 10 * max(least[0], 0.02)


def test_segmenters_ask_for_what_they_read() -> None:
    rollouts = rr.Rollouts(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool(), torch.zeros(1, 2), [0])
    for name in ("newline", "hybrid", "code", "think_answer"):
        with pytest.raises(ValueError, match="texts and token_offsets"):
            rr.get_segmenter(name)(rollouts)
    for name in ("entropy", "adaptive", "adaptive_retrospective"):
        with pytest.raises(ValueError, match="entropies or log_probs"):
            rr.get_segmenter(name)(rollouts)
    with pytest.raises(ValueError, match="log_probs"):
        rr.get_segmenter("probability")(rollouts)


@given(text=st.text(alphabet="a1 .\n\ufffd😀é", max_size=40), data=st.data())
def test_letters_and_digits_are_found_as_by_reading_on(text: str, data: st.DataObject) -> None:
    """`has_words` and `last_words` against one character after the other."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=8)))
    trace = Trace(np.arange(1), text, np.array([[0, len(text)]]))
    words = [char in "a1😀é" for char in text]  # beyond ASCII nearly all counts as a letter
    stretches = zip([0, *places], places, strict=False)
    assert trace.has_words(np.array(places)).tolist() == [any(words[low:high]) for low, high in stretches]
    expected = [max((at for at in range(place) if words[at]), default=-1) for place in places]
    assert trace.last_words(places) == expected
