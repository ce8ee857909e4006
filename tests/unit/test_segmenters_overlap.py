"""Segmenters within segmenters, keywords within keywords, and what a check of a user's own segmenter finds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.segmenters.lookahead import find_lookahead
from rredcot_plugin.testing import check_segmenter, sample_rollouts, text_rollouts
from tests.unit.reference import pieces

PROGRAM = "Here:\n```python\nimport os\n\ndef f(x):\n    return 1\n\nprint(f(1))\n```\nDone. Bye.\n"
SHORT = {"min_segment_tokens": 1}


def cut(segmenter: rr.segmenters.CutSegmenter, text: str) -> list[str]:
    rollouts = text_rollouts([text])
    return pieces(rollouts, segmenter(rollouts))


@pytest.mark.parametrize(
    ("level", "alone"),
    [
        ("code", rr.get_segmenter("code", **SHORT)),
        (
            {"name": "newline", "options": {"answer_markers": [], **SHORT}},
            rr.get_segmenter("newline", answer_markers=[], **SHORT),
        ),
    ],
)
def test_a_level_cuts_programs_where_its_segmenter_does(level: object, alone: rr.segmenters.CutSegmenter) -> None:
    nested = rr.get_segmenter("nested", levels=["turn", level], **SHORT)
    found = cut(nested, PROGRAM)
    assert any(part.strip() == "import os" for part in found)
    assert found == cut(alone, PROGRAM)


def test_a_level_that_takes_code_for_the_answer_leaves_it_whole() -> None:
    found = cut(rr.get_segmenter("nested", levels=["turn", "newline"], **SHORT), PROGRAM)
    assert any("import os" in part and "print(f(1))" in part for part in found)


@pytest.mark.parametrize("name", ["keyword", "hybrid"])
def test_a_keyword_within_a_longer_one_counts_whether_or_not_that_is_finished(name: str) -> None:
    segmenter = rr.get_segmenter(name, keywords=["Wait", "No. Wait, actually"], **SHORT)
    texts = ["a\nNo. Wait now it is so.", "a\nNo. Wait, actually it is."]
    parts = [cut(segmenter, text) for text in texts]
    assert [own[0] for own in parts] == ["a\nNo. Wait"] * 2
    assert find_lookahead(segmenter, text_rollouts(texts), rows=8) is None


class ByOutcome:
    """The worst look-ahead: a cut where the trace will have been rewarded."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        mask = rollouts.response_mask
        seen = mask.long().cumsum(1)
        ids = (seen > 3).long() * (rollouts.outcomes > 0).long()[:, None]
        ids = torch.where(mask, ids, -1)
        return rr.Segments(ids, torch.where(mask.any(1), ids.amax(1) + 1, 0))


def test_a_segmenter_that_reads_the_outcome_is_found() -> None:
    with pytest.raises(AssertionError, match="depends on what comes after it"):
        check_segmenter(ByOutcome())


@pytest.mark.parametrize("left", [0, 3])
def test_offsets_may_be_one_for_each_column(left: int) -> None:
    given = sample_rollouts()
    assert given.token_offsets is not None and not bool(given.response_mask.all())
    fields = {}
    for field in dataclasses.fields(rr.Rollouts):
        value = getattr(given, field.name)
        table = isinstance(value, torch.Tensor) and value.ndim == 2
        fields[field.name] = torch.nn.functional.pad(value, (left, 0)) if table else value
    columns = []
    for row, own in enumerate(given.token_offsets):
        of_row = np.zeros((fields["response_mask"].shape[1], 2), dtype=np.int64)
        of_row[np.flatnonzero(fields["response_mask"][row].numpy())] = np.asarray(own).reshape(-1, 2)
        columns.append(of_row)
    check_segmenter(rr.get_segmenter("sentence"), rr.Rollouts(**{**fields, "token_offsets": columns}))


def test_a_trace_that_begins_with_sure_tokens_is_cut_once_it_changes() -> None:
    """As log-probs in bfloat16 are: exactly 0 in boilerplate."""
    log_probs = torch.zeros(1, 400)
    log_probs[:, 64:] = -2.0
    log_probs[:, 200:] = -5.0
    rollouts = dataclasses.replace(text_rollouts(["x" * 400]), log_probs=log_probs)
    segmenter = rr.get_segmenter("adaptive", **SHORT)
    assert int(segmenter(rollouts).num_segments) >= 3
    check_segmenter(segmenter, dataclasses.replace(sample_rollouts(), entropies=None))
    flat = dataclasses.replace(rollouts, log_probs=torch.zeros(1, 400))
    assert int(segmenter(flat).num_segments) == 1
