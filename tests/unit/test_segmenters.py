"""Every segmenter keeps every rule; each cuts where it says it does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from tests.unit.reference import pieces, text_rollouts

TEXT = "Let me think.\n1 + 2 = 3\n\nBut wait. So 4.\n#### 4"


def test_newline_cuts_behind_line_ends_and_before_the_answer() -> None:
    rollouts = text_rollouts([TEXT])
    expected = ["Let me think.\n", "1 + 2 = 3\n\n", "But wait. So 4.\n", "#### 4"]
    assert pieces(rollouts, rr.get_segmenter("newline")(rollouts)) == expected


def test_fixed_cuts_every_n_tokens_and_skips_masked_ones() -> None:
    mask = torch.tensor([[False, True, True, False, True, True, True, False]])
    rollouts = rr.Rollouts(torch.zeros(1, 8, dtype=torch.int64), mask, torch.zeros(1, 8), [0])
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    assert segments.segment_ids.tolist() == [[-1, 0, 0, -1, 1, 1, 2, -1]]


def test_none_is_one_segment_and_an_empty_response_has_none() -> None:
    rollouts = text_rollouts([TEXT, ""])
    assert rr.get_segmenter("none")(rollouts).num_segments.tolist() == [1, 0]


def test_hybrid_wants_a_keyword_and_a_surprise() -> None:
    text = "We add. Wait, no. But yes. End."
    surprise = torch.full((1, len(text)), 0.1)
    surprise[0, text.index("Wait")] = 5.0
    surprise[0, text.index("But") - 1 : text.index("But") + 1] = 0.0
    rollouts = text_rollouts([text], entropies=surprise)
    segments = rr.get_segmenter("hybrid", quantile=0.9)(rollouts)
    assert pieces(rollouts, segments) == ["We add. ", "Wait, no. But yes. End."]
    everything = rr.get_segmenter("hybrid")(text_rollouts([text]))
    assert pieces(rollouts, everything) == ["We add. ", "Wait, no. ", "But yes. End."]


def test_hybrid_splits_long_stretches_at_the_most_surprising_sentence_end() -> None:
    text = "aaaa. bbbb. cccc. dddd."
    surprise = torch.zeros(1, len(text))
    surprise[0, text.index("c")] = 2.0
    rollouts = text_rollouts([text], log_probs=-surprise)
    segments = rr.get_segmenter("hybrid", max_stretch_tokens=15)(rollouts)
    assert pieces(rollouts, segments) == ["aaaa. bbbb. ", "cccc. dddd."]


def test_max_segments_merges_the_smallest_score_and_keeps_the_answer() -> None:
    text = "\n".join(["a", "bb", "cccccc", "d", "#### 1"])
    rollouts = text_rollouts([text])
    segments = rr.get_segmenter("newline", max_segments=3)(rollouts)
    assert pieces(rollouts, segments)[-1] == "#### 1"
    assert int(segments.num_segments[0]) == 3
    assert rr.get_segmenter("newline", max_segments=1)(rollouts).num_segments.tolist() == [1]


def test_min_segment_tokens() -> None:
    rollouts = text_rollouts(["a\nbb\nccc\ndddddd\ne"])
    segments = rr.get_segmenter("newline", min_segment_tokens=4)(rollouts)
    assert all(len(piece) >= 4 for piece in pieces(rollouts, segments))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a\nb</think>\nThe answer is 4", "\nThe answer is 4"),
        ("a = \\boxed{1}. So \\boxed{2}", "\\boxed{2}"),
        ("x\n#### 7", "#### 7"),
        ("hm. The answer is 7.", "The answer is 7."),
        ("see\n```python\nprint(1)\n```", "```python\nprint(1)\n```"),
    ],
)
def test_the_answer_segment_begins_where_reasoning_ends(text: str, answer: str) -> None:
    rollouts = text_rollouts([text])
    assert pieces(rollouts, rr.get_segmenter("newline")(rollouts))[-1] == answer


def test_a_multi_byte_character_is_never_split() -> None:
    # one token a byte: the three bytes of the euro sign share its span
    text, spans = "a€b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    rollouts = rr.Rollouts(
        torch.zeros(1, 5, dtype=torch.int64),
        torch.ones(1, 5).bool(),
        torch.zeros(1, 5),
        [0],
        texts=[text],
        token_offsets=[spans],
    )
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    assert segments.segment_ids.tolist() == [[0, 0, 0, 0, 1]]


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab.\n #W€\u202e", max_size=40), min_size=1, max_size=4),
    st.sampled_from(["none", "fixed", "newline", "hybrid"]),
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


def test_ten_thousand_newlines_are_linear_enough() -> None:
    rollouts = text_rollouts(["a\n" * 10_000])
    segments = rr.get_segmenter("newline", max_segments=64)(rollouts)
    assert int(segments.num_segments[0]) == 64


def test_text_segmenters_ask_for_texts() -> None:
    rollouts = rr.Rollouts(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool(), torch.zeros(1, 2), [0])
    for name in ("newline", "hybrid"):
        with pytest.raises(ValueError, match="texts and token_offsets"):
            rr.get_segmenter(name)(rollouts)
