"""Every segmenter keeps every rule; each cuts where it says it does."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch

import rredcot_plugin as rr
from tests.unit.reference import pieces, text_rollouts

TEXT = "Let me think.\n1 + 2 = 3\n\nBut wait. So 4.\n#### 4"


def test_newline_cuts_after_line_ends_and_a_blank_line_belongs_to_the_next() -> None:
    rollouts = text_rollouts([TEXT])
    expected = ["Let me think.\n", "1 + 2 = 3\n", "\nBut wait. So 4.\n", "#### 4"]
    assert pieces(rollouts, rr.get_segmenter("newline")(rollouts)) == expected


def test_fixed_cuts_every_n_tokens_and_skips_masked_ones() -> None:
    mask = torch.tensor([[False, True, True, False, True, True, True, False]])
    rollouts = rr.Rollouts(torch.zeros(1, 8, dtype=torch.int64), mask, torch.zeros(1, 8), [0])
    segments = rr.get_segmenter("fixed", tokens=2)(rollouts)
    assert segments.segment_ids.tolist() == [[-1, 0, 0, -1, 1, 1, 2, -1]]


def test_none_is_one_segment_and_an_empty_response_has_none() -> None:
    rollouts = text_rollouts([TEXT, ""])
    assert rr.get_segmenter("none")(rollouts).num_segments.tolist() == [1, 0]


def test_hybrid_wants_a_keyword_and_an_unsure_model() -> None:
    text = "We add up to four. Wait, no. But yes. End."
    entropy = torch.full((1, len(text)), 0.1)
    entropy[0, text.index("Wait")] = 5.0
    entropy[0, text.index("But") : text.index("But") + 4] = 0.0
    rollouts = text_rollouts([text], entropies=entropy)
    segments = rr.get_segmenter("hybrid", quantile=0.9)(rollouts)
    assert pieces(rollouts, segments) == ["We add up to four. Wait", ", no. But yes. End."]
    everything = rr.get_segmenter("hybrid")(text_rollouts([text]))
    assert pieces(rollouts, everything) == ["We add up to four. Wait", ", no. But", " yes. End."]


def test_hybrid_ends_long_stretches_with_the_next_sentence() -> None:
    rollouts = text_rollouts(["aaaa. bbbb. cccc. Wait dddd."])
    assert pieces(rollouts, rr.get_segmenter("hybrid", max_stretch_tokens=7)(rollouts)) == [
        "aaaa. bbbb.",
        " cccc. Wait",
        " dddd.",
    ]


def test_the_answer_keeps_a_place_when_segments_run_out() -> None:
    rollouts = text_rollouts(["a\nbb\ncccccc\nd so it is #### 1"])
    segments = rr.get_segmenter("newline", max_segments=3)(rollouts)
    assert pieces(rollouts, segments) == ["a\n", "bb\ncccccc\nd so it is ####", " 1"]
    assert rr.get_segmenter("newline", max_segments=1)(rollouts).num_segments.tolist() == [1]


def test_the_first_half_of_the_segments_comes_as_proposed_and_the_others_are_spread() -> None:
    rollouts = text_rollouts(["a\n" * 500])
    segmenter = rr.get_segmenter("newline", max_segments=12, max_response_tokens=1000)
    lengths = [len(piece) for piece in pieces(rollouts, segmenter(rollouts))]
    assert lengths[:5] == [2] * 5
    assert 10 <= len(lengths) <= 12
    assert all(early <= late for early, late in pairwise(lengths[5:-1]))


def test_min_segment_tokens_holds_for_all_but_the_last() -> None:
    rollouts = text_rollouts(["a\nbb\nccc\ndddddd\ne"])
    segments = rr.get_segmenter("newline", min_segment_tokens=4)(rollouts)
    assert pieces(rollouts, segments) == ["a\nbb\n", "ccc\n", "dddddd\n", "e"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a\nb</think>\nThe answer is 4", "\nThe answer is 4"),
        ("a = \\boxed{1}. So \\boxed{2}", "2}"),
        ("so a = 1\n\\boxed{2}", "\\boxed{2}"),
        ("x\n#### 7", "#### 7"),
        ("hm. The answer is 7.", " 7."),
        ("it is so: #### 7. Or. So.", " 7. Or. So."),
        ("see\n```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        (
            "see\r\n```python {.numbered}\r\nx = 1\r\n\r\nprint(x)\r\n```",
            "```python {.numbered}\r\nx = 1\r\n\r\nprint(x)\r\n```",
        ),
    ],
)
def test_the_last_segment_begins_where_the_answer_is_opened(text: str, answer: str) -> None:
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


def cut(name: str, text: str, **options: object) -> list[str]:
    """``text`` in pieces, with an entropy that peaks (at 5 nats) at every capital letter."""
    surprise = torch.tensor([[5.0 if char.isupper() else 0.01 * (i % 7) for i, char in enumerate(text)]])
    rollouts = text_rollouts([text], entropies=surprise, log_probs=-surprise)
    return pieces(rollouts, rr.get_segmenter(name, **options)(rollouts))


def test_paragraph_and_sentence() -> None:
    text = "It is 3.14, sin. so. And?\nthen\n\n  New (one!) It is 4. Or #### 4"
    assert cut("paragraph", text) == ["It is 3.14, sin. so. And?\nthen\n\n", "  New (one!) It is 4. Or ####", " 4"]
    assert cut("sentence", text) == [
        "It is 3.14, sin.",
        " so.",
        " And?",
        "\nthen\n",
        "\n  New (one!",
        ") It is 4. ",
        "Or ####",
        " 4",
    ]
    assert cut("sentence", "e.g. U.S. so") == ["e.", "g. U.", "S. so"]  # a letter is a token here
    assert cut("sentence", "好。然后") == ["好。", "然后"]
    assert cut("sentence", "1. Add. 12 + 3 = 15. So\n 2. It") == ["1. Add.", " 12 + 3 = 15. ", "So\n", " 2. It"]


def test_keyword_wants_the_start_of_a_sentence() -> None:
    assert cut("keyword", "We add. Wait, But no.\nSo yes") == ["We add. Wait", ", But no.\nSo", " yes"]
    assert cut("keyword", "We add. Wait, no. Oh dear", keywords=["Oh"]) == ["We add. Wait, no. Oh", " dear"]


@pytest.mark.parametrize("odd", [1, False, " ", ""])
def test_keywords_that_are_no_words_are_named(odd: object) -> None:
    """YAML reads ``No`` and ``Yes`` as truth values."""
    for name in ("keyword", "hybrid"):
        with pytest.raises(ValueError, match=f"expected words, got {odd!r}; in YAML put it into quotes"):
            rr.get_segmenter(name, keywords=["Wait", odd])


def test_a_keyword_inside_a_longer_token_is_another_word() -> None:
    words = ["We", " add", ".", " Some", " go", ".", " So", " it"]
    ends = torch.tensor([len(word) for word in words]).cumsum(0).tolist()
    spans = [(end - len(word), end) for word, end in zip(words, ends, strict=True)]
    n = len(words)
    rollouts = rr.Rollouts(
        torch.zeros(1, n, dtype=torch.int64),
        torch.ones(1, n).bool(),
        torch.zeros(1, n),
        [0],
        texts=["".join(words)],
        token_offsets=[spans],
    )
    assert rr.get_segmenter("keyword")(rollouts).segment_ids.tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]]


def test_entropy_cuts_before_forking_tokens() -> None:
    text = "a" * 20 + "B" + "a" * 9 + "C" + "a" * 4
    surprisal = torch.tensor([[5.0 if char.isupper() else 0.01 for char in text]])
    rollouts = text_rollouts([text], entropies=surprisal)
    assert pieces(rollouts, rr.get_segmenter("entropy")(rollouts)) == ["a" * 20, "B" + "a" * 9, "Caaaa"]
    rollouts = text_rollouts([text], log_probs=-surprisal)  # what a token cost is known after it
    assert pieces(rollouts, rr.get_segmenter("entropy")(rollouts)) == ["a" * 20 + "B", "a" * 9 + "C", "aaaa"]


def test_newline_entropy_keeps_the_least_sure_line_ends() -> None:
    text = "a\n" * 17 + "B\n" + "c\n" + "D"
    assert cut("newline_entropy", text, target_segments=99) == ["a\n"] * 17 + ["B\nc\n", "D"]
    assert len(cut("newline_entropy", text)) <= 16


def test_probability_counts_improbable_tokens() -> None:
    assert cut("probability", "aXbXcXdXeXf", interval=2) == ["aXbX", "cXdX", "eXf"]


def test_think_answer() -> None:
    assert cut("think_answer", "a\nb. c</think>\nit is 4") == ["a\nb. c</think>", "\nit is 4"]
    assert cut("think_answer", "a\nb. c") == ["a\nb. c"]
    assert cut("think_answer", "a #### b", answer_markers=["boxed"]) == ["a #### b"]


def test_turns_are_parted_by_the_mask() -> None:
    mask = torch.tensor([[True, True, False, False, True, False, True, True]])
    rollouts = rr.Rollouts(torch.zeros(1, 8, dtype=torch.int64), mask, torch.zeros(1, 8), [0])
    assert rr.get_segmenter("turn")(rollouts).segment_ids.tolist() == [[0, 0, -1, -1, 1, -1, 2, 2]]


def test_code_cuts_after_outer_lines_heads_of_definitions_and_blank_lines() -> None:
    code = [
        "```python\n",
        "import os\n",
        "\n@cache\n",
        "def f(x):\n",
        "    if x:\n        return 1\n    return 2\n\n",
        "class A:\n",
        "    def g(self): pass\n",
        "print(1)\n",
    ]
    text = "We try. It works:\n" + "".join(code) + "```\nDone. Yes."
    assert cut("code", text) == ["We try.", " It works:\n", *code, "```\nDone.", " Yes."]


def test_code_takes_an_unfinished_fence() -> None:
    assert cut("code", "So:\n```\na = 1\n\nb = 2") == ["So:\n", "```\na = 1\n", "\nb = 2"]


def test_adaptive_finds_a_change_of_level() -> None:
    noise = 0.05 * torch.rand(1, 192, generator=torch.Generator().manual_seed(0))
    calm, unsure = torch.full((1, 64), 0.1), torch.full((1, 64), 2.0)
    rollouts = text_rollouts(["a" * 192], entropies=torch.cat([calm, unsure, calm], dim=1) + noise)
    lengths = [len(piece) for piece in pieces(rollouts, rr.get_segmenter("adaptive")(rollouts))]
    assert 64 < lengths[0] <= 80  # noticed one or two bins after the change
    assert 56 <= lengths[1] <= 96  # the deviation is larger after a change
    retrospective = rr.get_segmenter("adaptive_retrospective")(rollouts)
    assert [len(piece) for piece in pieces(rollouts, retrospective)] == [64, 64, 64]


def test_adaptive_retrospective_without_ruptures_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.segmenters.retrospective.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"rredcot\[adaptive\]"):
        rr.get_segmenter("adaptive_retrospective")


def test_retrospective_cuts_take_the_best_of_the_whole_trace() -> None:
    text = "a\nb\nC\nd\nE\nf"
    assert cut("newline_entropy_retrospective", text, target_segments=3) == ["a\nb\n", "C\nd\n", "E\nf"]
    assert cut("hybrid_retrospective", "We add. Wait, no. But yes.", max_segments=2) == [
        "We add. ",
        "Wait, no. But yes.",
    ]
    assert cut("hybrid_retrospective", "a = \\boxed{1}. So \\boxed{2}")[-1] == "\\boxed{2}"


def test_what_a_tool_says_opens_no_answer() -> None:
    """Its words would hide the lines of the next turn; those of the model still do."""
    text = "a\n```\nthe answer is b\nc\n"
    first, last = 2, text.index("b")
    mask = torch.ones(1, len(text)).bool()
    mask[:, first:last] = False
    rollouts = text_rollouts([text])
    spans = [span for span, real in zip(rollouts.token_offsets[0], mask[0].tolist(), strict=True) if real]
    agent = dataclasses.replace(rollouts, response_mask=mask, token_offsets=[spans])
    found = rr.get_segmenter("newline")(agent)
    assert found.segment_ids[0][mask[0]].tolist() == [0, 0, 1, 1, 2, 2]
    alone = rr.get_segmenter("newline")(rollouts).segment_ids[0]
    assert alone[last] == alone[-1], "one open fence to the end"
