"""Tokens of probes, and converted models, in every family of tokenizers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from transformers import AutoTokenizer

from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from tests.unit.tokenizer_families import (
    EOS,
    FAMILIES,
    LINES,
    characters,
    table_of,
    tokenizer_of,
)

KEEPS_EVERY_CHARACTER = ("byte_level", "llama_first", "llama_always", "llama_never", "gemma")
"""Families that encode any text; the others know the characters of ``LINES`` alone."""


BRIDGES = [
    "\n\n**Final Answer**\n\\boxed{",
    "\n#### ",
    "#### ",
    "\nThe answer is ",
    "The answer is ",
    "\n</think>\n\n#### ",
]


ANSWERS = st.one_of(
    st.text("0123456789+=", min_size=1, max_size=6), st.sampled_from(["x + 1", "so wrong", "f(2)"])
)


UNICODE_ANSWERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(lambda t: f"1{t}1")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("word_piece", "no_decoder", "demo")])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=st.data())
def test_the_counted_tokens_of_a_probe_are_answer_and_terminator(family: str, data: st.DataObject) -> None:
    """Behind a response they read bridge, answer, terminator; counting starts no later than the answer does."""
    answer = data.draw(ANSWERS | UNICODE_ANSWERS if family in KEEPS_EVERY_CHARACTER else ANSWERS)
    bridge, terminator = data.draw(st.sampled_from(BRIDGES)), data.draw(st.sampled_from([EOS, "}", "."]))
    encoder = ProbeEncoder(tokenizer_of(family), terminator=terminator, max_probe_tokens=99)
    ids, skip = encoder.encode(bridge, answer)
    assert 0 <= skip < len(ids)
    counted, reads = answer + terminator, behind(family, ids)
    if family in KEEPS_EVERY_CHARACTER:  # "always": a space behind every added token, too
        assert reads.replace("</think> ", "</think>") == bridge + counted
    tail = behind(family, ids[skip:])
    assert tail.endswith(counted)
    assert bridge.endswith(tail[: len(tail) - len(counted)])
    assert len(behind(family, ids[skip + 1 :])) < len(counted)


def behind(family: str, ids: tuple[int, ...]) -> str:
    """What the tokens read behind other text."""
    full = tokenizer_of(family)("a", add_special_tokens=False)["input_ids"]
    return table_of(family).align(np.array([*full, *ids]))[0][1:]


def test_a_bridge_does_not_begin_with_a_space_of_sentencepiece() -> None:
    encoder = ProbeEncoder(tokenizer_of("llama_first"), terminator=EOS)
    ids, skip = encoder.encode("The answer is ", "42")
    assert behind("llama_first", ids) == "The answer is 42" + EOS
    assert skip > 0


UNALIGNABLE = [
    decoders.Sequence([decoders.CTC(), decoders.Fuse()]),  # drops repetitions
    decoders.BPEDecoder(suffix="e"),  # a space behind a word, but not at the end of the text
    decoders.Sequence([decoders.Fuse(), decoders.Strip("e", 0, 1)]),  # nothing at the end of the text
]


@pytest.mark.parametrize("decoder", UNALIGNABLE)
def test_a_decoder_that_looks_at_neighbours_is_refused_by_name(decoder: Any) -> None:
    tokenizer = characters(decoder)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(ValueError, match=r"TokenizersBackend 'some/model'.*token for token"):
        TokenBytes.from_tokenizer(tokenizer)


@pytest.mark.skipif(find_spec("sentencepiece") is None, reason="sentencepiece is not installed")
@pytest.mark.parametrize(
    ("kind", "file", "model"),
    [
        ("bpe", "tokenizer.model", "llama"),
        ("bpe", "tokenizer.model", "gemma"),
        ("unigram", "spiece.model", "t5"),
        ("unigram", "sentencepiece.bpe.model", "xlm-roberta"),
    ],
)
def test_sentencepiece_models_that_transformers_converts(kind: str, file: str, model: str, tmp_path: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_prefix=str(tmp_path / "trained"),
        vocab_size=420,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        user_defined_symbols=["<think>", "</think>"],
        minloglevel=2,
    )
    (tmp_path / "trained.model").rename(tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    table = TokenBytes.from_tokenizer(tokenizer)
    for text in [*LINES[:5], "", "  two", "\n\n<think>a</think> €🙂\x00"]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        aligned, spans = table.align(np.array(ids, dtype=np.int64))
        assert aligned == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert spans[:, 1].max(initial=0) == len(aligned)
