"""The segmenter `nested`: several levels in one, by itself and in the pipeline."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.credit import hierarchy
from rredcot_plugin.registry import SEGMENTERS
from rredcot_plugin.segmenters.nested import NestedSegmenter
from rredcot_plugin.testing import check_segmenter, sample_rollouts
from tests.unit.reference import pieces, text_rollouts
from tests.unit.test_hierarchy import partition

HALVES = f"{__name__}:Halves"


class Halves:
    """A segmenter that is not a CutSegmenter: two segments of equally many tokens."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        seen = rollouts.response_mask.cumsum(1)
        return partition(rollouts.response_mask, seen == seen[:, -1:] // 2 + 1)


class AfterSpaces(rr.segmenters.CutSegmenter):
    def propose(self, trace):
        cuts = trace.tokens_from([i + 1 for i, char in enumerate(trace.text) if char == " "])
        return cuts[::-1]  # the order does not matter


class Nothing:
    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        return rr.Segments(
            torch.full_like(rollouts.token_ids, -1), torch.zeros(rollouts.batch_size, dtype=torch.int64)
        )


FIXED_1 = {"name": "fixed", "options": {"tokens": 1}}
LEVELS = [
    ["turn", "newline"],
    ["think_answer", "paragraph", "sentence", FIXED_1],
    ["none", "hybrid", "entropy"],
    ["keyword", {"name": "newline_entropy", "options": {"target_segments": 3}}, "code"],
    ["fixed", {"name": "nested", "options": {"levels": ["turn", "sentence"]}}],
    ["turn"],
]


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("limits", [{}, {"min_segment_tokens": 3, "max_segments": 5}])
def test_nested_conforms_at_every_level(levels: list, limits: dict) -> None:
    segmenter = NestedSegmenter(levels=levels, **limits)
    check_segmenter(segmenter)
    rollouts = sample_rollouts()
    found = segmenter.all_levels(rollouts)
    assert len(found) == len(levels)
    assert torch.equal(found[-1].segment_ids, segmenter(rollouts).segment_ids)
    for coarse, fine in pairwise(found):
        hierarchy.parents(fine, coarse)  # raises where they do not nest
    if limits:
        assert int(found[-1].num_segments.max()) <= 5
        first = found[0]
        last = torch.arange(first.max_segments) == first.num_segments[:, None] - 1
        assert (first.lengths[first.exists & ~last] >= 3).all()
        for coarse, fine in pairwise(found):  # only what ends with a coarse segment may be shorter
            ends = torch.nn.functional.pad(starts(coarse), (0, 1), value=True)
            following = torch.cat(
                [fine.starts[:, 1:], torch.full_like(fine.starts[:, :1], ends.shape[1] - 1)], dim=1
            )
            assert (fine.lengths[fine.exists & ~ends.gather(1, following)] >= 3).all()


def starts(segments: rr.Segments) -> torch.Tensor:
    """(B, T): true where a segment begins, behind the first."""
    T = segments.segment_ids.shape[1]
    begins = torch.zeros(len(segments.num_segments), T + 1, dtype=torch.bool)
    return begins.scatter(1, segments.starts[:, 1:], True)[:, :T]


@pytest.mark.parametrize("levels", [["turn", "newline"], ["sentence", "fixed", "turn"], ["newline", "entropy"]])
def test_with_room_the_finest_level_is_the_common_refinement(levels: list[str]) -> None:
    rollouts = sample_rollouts()
    found = NestedSegmenter(levels=levels, max_segments=10_000).all_levels(rollouts)
    union = torch.zeros_like(rollouts.response_mask)
    for name, level in zip(levels, found, strict=True):
        union = union | starts(rr.get_segmenter(name, max_segments=10_000)(rollouts))
        assert torch.equal(starts(level), union)


def cut(text: str, levels: list, surprise: torch.Tensor | None = None, **limits: object) -> list[list[str]]:
    rollouts = text_rollouts([text], entropies=surprise)
    found = NestedSegmenter(levels=levels, **limits).all_levels(rollouts)
    return [pieces(rollouts, level) for level in found]


TEXT = "aa. b\ncc. d\n\nee. ff\n#### 4"


def test_levels_of_a_text() -> None:
    assert cut(TEXT, ["paragraph", "newline", "sentence"]) == [
        ["aa. b\ncc. d\n\n", "ee. ff\n####", " 4"],
        ["aa. b\n", "cc. d\n", "\n", "ee. ff\n", "####", " 4"],
        ["aa.", " b\n", "cc.", " d\n", "\n", "ee.", " ff\n", "####", " 4"],
    ]


def test_coarse_cuts_have_a_share_of_the_room() -> None:
    text = "a\nb\nc\n" + "d e f g h i\n"
    spaces = {"name": AFTER_SPACES}
    # four cuts in all, one of which is kept for the answer, or two for the coarse level
    assert cut(text, ["newline", spaces], max_segments=6) == [
        ["a\n", "b\nc\nd e f g h i\n"],
        ["a\n", "b\nc\nd ", "e ", "f g h i\n"],
    ]
    assert cut(text, ["newline", spaces], max_segments=1) == [[text], [text]]


def test_a_fine_cut_never_pushes_out_a_coarse_one_that_is_too_near() -> None:
    text = "aaa bb\ncc dddd"
    spaces = {"name": AFTER_SPACES}
    assert cut(text, ["newline", spaces]) == [["aaa bb\n", "cc dddd"], ["aaa ", "bb\n", "cc ", "dddd"]]
    assert cut(text, ["newline", spaces], min_segment_tokens=4) == [
        ["aaa bb\n", "cc dddd"],
        ["aaa ", "bb\n", "cc dddd"],
    ]
    assert cut(text, ["none", spaces], min_segment_tokens=4) == [[text], ["aaa ", "bb\ncc ", "dddd"]]


AFTER_SPACES = f"{__name__}:AfterSpaces"


def test_members_that_are_whole_segmenters_join_in() -> None:
    assert cut("ab\ncdef", [HALVES, "newline"]) == [["ab\n", "cdef"], ["ab\n", "cdef"]]
    assert cut("ab\ncdefg", [HALVES, "newline"]) == [["ab\nc", "defg"], ["ab\n", "c", "defg"]]
    assert cut("a #### 4567890", [HALVES]) == [["a ####", " 4567890"]]  # half would be inside the answer


def test_limits_and_markers_of_a_level() -> None:
    text = "a\n" * 100 + "\\boxed{1}"
    ten = {"name": "newline", "options": {"max_segments": 10}}
    assert [len(level) for level in cut(text, [ten, "newline"], max_segments=1000)] == [6, 102]
    three = {"name": "newline_entropy", "options": {"target_segments": 3}}
    assert cut("aa\nbb\ncc\ndd\n", [three, "newline"], torch.zeros(1, 12))[0] == ["aa\n", "bb\ncc\ndd\n"]
    # the markers go to the levels too, or a level would part off an answer that is none
    assert cut("a\n\\boxed{1}", ["none", "newline"], answer_markers=["hash"]) == [
        ["a\n\\boxed{1}"],
        ["a\n", "\\boxed{1}"],
    ]
    assert cut("a. \\boxed{1}", ["newline"], answer_markers=[]) == [["a. \\boxed{1}"]]


def test_turns_and_lines_of_an_agent_in_the_pipeline() -> None:
    rollouts = text_rollouts(["a\nb<tool>c\nd"] * 2, rewards=torch.eye(2, 12))
    mask = rollouts.response_mask.clone()
    mask[:, 3:9] = False
    rollouts = rr.Rollouts(
        rollouts.token_ids,
        mask,
        rollouts.rewards,
        [0, 0],
        texts=rollouts.texts,
        token_offsets=rollouts.token_offsets,
    )
    segmenter = NestedSegmenter()
    turns, lines = segmenter.all_levels(rollouts)
    assert turns.segment_ids[0].tolist() == [0, 0, 0, *[-1] * 6, 1, 1, 1]
    assert lines.segment_ids[0].tolist() == [0, 0, 1, *[-1] * 6, 2, 2, 3]
    config = rr.RRedCoTConfig.from_mapping(
        {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", "newline"]}}
    )
    credit = rr.assign_credit(rollouts, config, values=torch.tensor([[0.5, 0.7, 0.1, 0.9]] * 2))
    by_turn = hierarchy.roll_up(credit.segment_rewards, credit.segments, turns)
    assert torch.equal(credit.segments.segment_ids, lines.segment_ids)
    assert torch.allclose(by_turn.sum(1), rollouts.outcomes)


def test_nested_reads_what_its_levels_read() -> None:
    segmenter = NestedSegmenter(levels=["turn", "hybrid", "newline_entropy"])
    assert set(segmenter.needs) == {"texts", "uncertainty"}
    assert NestedSegmenter(levels=["turn", "hybrid"]).uses == ("uncertainty",)
    assert NestedSegmenter(levels=["turn", "fixed", HALVES]).needs == ()
    bare = rr.Rollouts(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool(), torch.zeros(1, 2), [0])
    with pytest.raises(ValueError, match="NewlineSegmenter: expected Rollouts with texts"):
        NestedSegmenter()(bare)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([], "expected a list of segmenters"),
        ("newline", "expected a list of segmenters"),
        ({"name": "newline"}, "expected a list of segmenters"),
        (["turn", "newlin"], "Did you mean 'newline'"),
        ([{"name": "fixed", "tokens": 3}], "expected a name"),
        ([{"options": {}}], "expected a name"),
        ([{"name": "fixed", "options": [3]}], "expected a name"),
        ([3], "expected a name"),
        ([{"name": "fixed", "options": {"tokens": 0}}], "tokens=0"),
        ([{"name": "fixed", "options": {"token": 1}}], "token"),
        ([{"path": "no/such/file.py", "name": "X"}], "no such file"),
    ],
)
def test_bad_levels_are_named(levels: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SEGMENTERS.get("nested", levels=levels)


def test_a_member_that_leaves_tokens_out_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout 0: expected every unmasked token"):
        NestedSegmenter(levels=[f"{__name__}:Nothing"])(text_rollouts(["ab"]))


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab.\n #W€`@", max_size=30), min_size=1, max_size=3),
    st.lists(
        st.sampled_from(["newline", "sentence", "keyword", "code", "none", HALVES, FIXED_1]),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_nested_levels_of_anything_nest(texts: list[str], levels: list, least: int, most: int) -> None:
    rollouts = text_rollouts(texts)
    found = NestedSegmenter(levels=levels, min_segment_tokens=least, max_segments=most).all_levels(rollouts)
    for coarse, fine in pairwise(found):
        hierarchy.parents(fine, coarse)
    assert int(found[-1].num_segments.max()) <= most


def two_turns() -> rr.Rollouts:
    """Two turns of two lines each with tool output between them, reward 1; and a sibling of one turn, reward 0."""
    texts = ["a\nb\nTOOL\nc\nd", "a\nb"]
    rollouts = text_rollouts(texts, outcomes=[1.0, 0.0])
    mask = rollouts.response_mask.clone()
    mask[0, 4:9] = False
    spans = [
        [span for span, real in zip(rollouts.token_offsets[0], mask[0], strict=False) if real],
        rollouts.token_offsets[1],
    ]
    return dataclasses.replace(rollouts, response_mask=mask, token_offsets=spans)


def test_two_lambdas_in_the_pipeline() -> None:
    rollouts = two_turns()
    options = {"segmenter": "nested", "scale": "none", "value_estimator": "confidence", "calibrate": "none"}
    options["segmenter_kwargs"] = {"answer_markers": []}
    values = torch.tensor([[0.5, 0.6, 0.4, 0.7], [0.5, 0.3, 0.0, 0.0]])
    for lam, lam_coarse in ((1.0, 1.0), (0.5, 1.0), (0.0, 0.5)):
        config = rr.RRedCoTConfig(**options, lam=lam, lam_coarse=lam_coarse)
        coarse, fine = config.build_levels(rollouts)
        assert (coarse.num_segments.tolist(), fine.num_segments.tolist()) == ([2, 1], [4, 2])
        credit = rr.assign_credit(rollouts, config, values=values)
        deltas = [0.1, -0.2, 0.3, 0.3]
        expected = [
            deltas[0] + lam * deltas[1] + lam_coarse * (deltas[2] + deltas[3]),
            deltas[2] + lam * deltas[3],
        ]
        first = credit.segments.starts[0].tolist()
        assert credit.advantages[0, first[0]].item() == pytest.approx(expected[0])
        assert credit.advantages[0, first[2]].item() == pytest.approx(expected[1])


def test_two_lambdas_need_two_levels() -> None:
    with pytest.raises(ValueError, match=r"lam_coarse=0.9: segmenter='newline' has one level"):
        rr.RRedCoTConfig.from_mapping({"segmenter": "newline", "lam_coarse": 0.9})
    config = rr.RRedCoTConfig(segmenter="nested", lam_coarse=0.9)
    rollouts = two_turns()
    with pytest.raises(ValueError, match="needs the segments that these are parts of"):
        rr.assign_credit(rollouts, config, segments=config.build_levels(rollouts)[-1])
