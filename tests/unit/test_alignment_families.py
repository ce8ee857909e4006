"""Tokens and characters of every family of tokenizers, built here from a few hundred lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.text.alignment import REPLACEMENT, TokenBytes
from tests.unit.tokenizer_families import (
    FAMILIES,
    LINES,
    table_of,
    tokenizer_of,
)

each_family = pytest.mark.parametrize("family", FAMILIES)


SCRIPTS = st.sampled_from(
    list("aA 1\n\t\x00\x7f.▁Ġé€你。א🙂")
    + ["e\u0301", "\u202e", "👩‍👩‍👧", "🇩🇪", "\u200d", "<think>", "<0x0A>", "  "]
)


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=24),
    st.lists(SCRIPTS, max_size=12).map("".join),
    st.sampled_from(LINES),
)  # fmt: skip


ID_LISTS = st.lists(st.integers(-2, 900), max_size=24)


fast = settings(deadline=None, max_examples=60, derandomize=True)


def check_spans(family: str, ids: list[int]) -> str:
    """The properties of an alignment, spelled out; returns the text."""
    table = table_of(family)
    text, spans = table.align(np.array(ids, dtype=np.int64))
    text.encode("utf-8")  # no lone surrogates
    assert spans.shape == (len(ids), 2)
    assert ((spans >= 0) & (spans <= len(text))).all()
    assert (spans[:, 1] >= spans[:, 0]).all()
    assert (np.diff(spans, axis=0) >= 0).all()
    covered = {char for start, stop in spans.tolist() for char in range(start, stop)}
    assert covered == set(range(len(text)))
    check_shared_characters(ids, text, spans, table)
    return text


def check_shared_characters(ids: list[int], text: str, spans: np.ndarray, table: TokenBytes) -> None:
    """Every token that holds a byte of a character has that character in its span, and no other."""
    owners = [i for i, token in enumerate(entries(ids, table)) for _ in range(token)]
    invalid = text.count(REPLACEMENT)
    widths = [len(char.encode()) for char in text]
    if invalid:  # a replacement stands for one byte, unless the vocabulary itself has the character
        return
    at = 0
    for char, width in enumerate(widths):
        for owner in owners[at : at + width]:
            assert spans[owner, 0] <= char < spans[owner, 1]
        at += width
    assert at == len(owners)
    for i, (start, stop) in enumerate(spans.tolist()):
        if i in owners:
            assert all(i in owners[sum(widths[:c]) : sum(widths[: c + 1])] for c in range(start, stop))


def entries(ids: list[int], table: TokenBytes) -> list[int]:
    """Bytes of each token, the first one that exists read as the first of a text."""
    known = [0 <= i < table.vocab_size for i in ids]
    sizes = np.diff(table.start)
    first = known.index(True) if any(known) else -1
    return [int(sizes[i + table.vocab_size * (k == first)]) if known[k] else 0 for k, i in enumerate(ids)]


def own_text(family: str, ids: list[int]) -> str:
    known = [i for i in ids if 0 <= i < table_of(family).vocab_size]
    return tokenizer_of(family).decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@each_family
@fast
@given(text=TEXTS)
def test_any_text_aligns_to_what_the_tokenizer_decodes(family: str, text: str) -> None:
    ids = tokenizer_of(family)(text, add_special_tokens=False)["input_ids"]
    aligned = check_spans(family, ids)
    assert aligned == own_text(family, ids)
    if family == "byte_level":
        assert aligned == text


@each_family
@fast
@given(ids=ID_LISTS)
def test_any_sequence_of_tokens_aligns(family: str, ids: list[int]) -> None:
    """Broken UTF-8, added tokens, ids outside the vocabulary. Where bytes make no character, decoders differ."""
    aligned, own = check_spans(family, ids), own_text(family, ids)
    if REPLACEMENT not in own:
        assert aligned == own
    elif family in ("byte_level", "demo"):  # the decoder writes one for several bytes, or one for each
        assert aligned.replace(REPLACEMENT, "") == own.replace(REPLACEMENT, "")


def test_broken_bytes_are_one_character_each() -> None:
    table, tokenizer = table_of("llama_first"), tokenizer_of("llama_first")
    ids = tokenizer.convert_tokens_to_ids(["<0xE2>", "<0x82>", "<0xAC>", "<0xE2>", "<0x82>", "<0x61>"])
    text, spans = table.align(np.array(ids))
    assert text == f"€{REPLACEMENT}{REPLACEMENT}a"
    assert spans.tolist() == [[0, 1], [0, 1], [0, 1], [1, 2], [2, 3], [3, 4]]


def test_the_space_in_front_of_the_first_token_is_left_out_once() -> None:
    for family in ("llama_first", "unigram_always"):
        ids = tokenizer_of(family)("so is", add_special_tokens=False)["input_ids"]
        table = table_of(family)
        assert table.align(np.array(ids))[0] == "so is"
        assert table.align(np.array([*ids, *ids]))[0] == "so is so is"
        assert table.align(np.array([-1, *ids]))[0] == "so is"


EAGER: dict[str, dict[str, Any]] = {
    "fixed": {"tokens": 1},
    "entropy": {"quantile": 0.0},
    "probability": {"threshold": 1.0, "interval": 1},
    "adaptive": {"bin_tokens": 1, "threshold": 0.01},
    "adaptive_retrospective": {"bin_tokens": 1, "penalty": 0.01},
    "hybrid": {"quantile": 0.0, "max_stretch_tokens": 1},
    "newline_entropy": {"target_segments": 1000},
}


SEGMENTERS = [name for name in rr.list_segmenters() if name != "none"]


def rollouts_of(family: str, rows: list[list[int]], seed: int) -> rr.Rollouts:
    """Right-padded rollouts of token ids, some of them masked, with random surprise."""
    generator = torch.Generator().manual_seed(seed)
    width = max(1, *map(len, rows))
    aligned = [table_of(family).align(np.array(row, dtype=np.int64)) for row in rows]
    mask = torch.rand(len(rows), width, generator=generator) < 0.9
    for i, row in enumerate(rows):
        mask[i, len(row) :] = False
    surprise = torch.rand(len(rows), width, generator=generator)
    return rr.Rollouts(
        token_ids=torch.tensor([row + [0] * (width - len(row)) for row in rows]).reshape(len(rows), width),
        response_mask=mask,
        rewards=torch.zeros(len(rows), width),
        group_ids=list(range(len(rows))),
        log_probs=-surprise,
        entropies=surprise,
        texts=[text for text, _ in aligned],
        token_offsets=[spans[mask[i, : len(spans)].numpy()] for i, (_, spans) in enumerate(aligned)],
    )


def encoded_or_random(family: str) -> st.SearchStrategy[list[int]]:
    encode = tokenizer_of(family)
    lines = st.lists(TEXTS, min_size=1, max_size=4).map(" So\n".join)
    return st.one_of(ID_LISTS, lines.map(lambda text: encode(text, add_special_tokens=False)["input_ids"][:80]))


@pytest.mark.parametrize("family", ["byte_level", "llama_first", "gemma", "unigram_always", "characters", "demo"])
@settings(deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_no_segmenter_cuts_inside_a_character(family: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(encoded_or_random(family), min_size=1, max_size=3))
    rollouts = rollouts_of(family, rows, data.draw(st.integers(0, 99)))
    for name in SEGMENTERS:
        for options in ({}, EAGER.get(name, {})):
            segments = rr.get_segmenter(name, **options)(rollouts)
            check_cuts(name, segments, rollouts)


def check_cuts(name: str, segments: rr.Segments, rollouts: rr.Rollouts) -> None:
    assert ((segments.segment_ids >= 0) == rollouts.response_mask).all()
    for row, spans in enumerate(rollouts.token_offsets):
        ids = segments.segment_ids[row][rollouts.response_mask[row]].tolist()
        for i in range(1, len(ids)):
            assert ids[i] == ids[i - 1] or spans[i][0] >= spans[i - 1][1], (name, row, i)
