"""Alignment of tokens and characters, answers, and the encoding of probes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.answers import FORMATS, answer_start, format_votes, most_voted
from rredcot_plugin.text.encoding import ProbeEncoder


def byte_tokenizer(merges: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE; a few merges join letters, and also the bytes of some multi-byte characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=258 + merges,
        special_tokens=["<eos>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the answer is 42 the the €uro €uro 42 42"] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<eos>")


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "<0xE2>": 5, "<0x82>": 6, "<0xAC>": 7, "<s>": 8}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


BYTES = byte_tokenizer(30)
TABLE = TokenBytes.from_tokenizer(BYTES)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_alignment_reproduces_any_text_and_the_tokenizers_own_offsets(text: str) -> None:
    text = text.encode("utf-8", errors="ignore").decode()
    encoding = BYTES(text, add_special_tokens=False, return_offsets_mapping=True)
    aligned, spans = TABLE.align(np.array(encoding["input_ids"], dtype=np.int64))
    assert aligned == text
    assert [tuple(s) for s in spans.tolist()] == [tuple(s) for s in encoding["offset_mapping"]]


@given(st.lists(st.integers(-2, 400), max_size=30))
def test_alignment_takes_any_sequence_of_tokens(ids: list[int]) -> None:
    """Broken UTF-8, special tokens, ids outside the vocabulary: always a partition of the characters."""
    text, spans = TABLE.align(np.array(ids, dtype=np.int64))
    assert spans.shape == (len(ids), 2)
    if len(ids):
        assert (spans[:, 1] >= spans[:, 0]).all()
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert int(spans[:, 1].max(initial=0)) == len(text)
    text.encode("utf-8")  # no lone surrogates left


def test_half_a_character_becomes_one_replacement_and_shares_no_span() -> None:
    euro = BYTES("€", add_special_tokens=False)["input_ids"]
    single = byte_tokenizer()
    table = TokenBytes.from_tokenizer(single)
    first, second, third = single("€", add_special_tokens=False)["input_ids"]
    text, spans = table.align(np.array([first, second]))
    assert text == "\ufffd\ufffd"
    text, spans = table.align(np.array([first, second, third]))
    assert text == "€"
    assert spans.tolist() == [[0, 1]] * 3
    assert euro


def test_sentencepiece_spaces_and_byte_fallback() -> None:
    tokenizer = sentencepiece_tokenizer()
    text, spans = TokenBytes.from_tokenizer(tokenizer).align(np.array([4, 3, 5, 6, 7, 2]))
    assert text == " ab€a"
    assert spans.tolist() == [[0, 2], [2, 3], [3, 4], [3, 4], [3, 4], [4, 5]]


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="expected a fast tokenizer"):
        TokenBytes.from_tokenizer(Slow())


@pytest.mark.parametrize(
    ("text", "name", "answer"),
    [
        ("so \\boxed{\\frac{1}{2}} done", "boxed", "\\frac{1}{2}"),
        ("x = 3\n#### 42<|im_end|>", "hash", "42"),
        ("#### 1\nno wait\n#### 2", "hash", "2"),
        ("The answer is 3.5.", "phrase", "3.5"),
        ("the final answer is: 7", "phrase", "7"),
        ("try\n```python\nprint(1)\n```", "code", "print(1)"),
        ("```python \nprint(1)\n```\nThis works.", "code", "print(1)"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```\ndone\n", "code", "x = 2"),
        ("```py\nx = 2\n", "code", "x = 2"),
        ("```py {.numbered}\r\nx = 2\r\n```\r\n", "code", "x = 2"),
    ],
)
def test_answers_are_found(text: str, name: str, answer: str) -> None:
    assert FORMATS[name].extract(text) == answer


@pytest.mark.parametrize("text", ["", "####", "\\boxed{", "#### \n", "nothing here"])
def test_no_answer_is_none(text: str) -> None:
    assert all(f.extract(text) is None for f in FORMATS.values())


@given(st.text(max_size=80))
def test_any_text_has_an_answer_start_or_none(text: str) -> None:
    start = answer_start(text)
    assert start is None or 0 <= start <= len(text)


def test_the_majority_decides_the_format() -> None:
    assert most_voted(format_votes(["#### 1", "#### 2", "\\boxed{3}"])).name == "hash"
    assert most_voted(format_votes(["none", ""])) is None


def test_thoughts_do_not_decide_the_format() -> None:
    assert most_voted(format_votes(["so the answer is 5.</think>\n```py\nx = 5\n```"])).name == "code"
    assert most_voted(format_votes(["so the answer is 5.</think>\n"])) is None
    assert most_voted(format_votes(["so the answer is 5."])).name == "phrase"


def test_bridge_closes_the_thinking_once_and_repeats_no_line_end() -> None:
    encoder = ProbeEncoder(BYTES)
    encoder.observe(["a</think>\n#### 3"], [""])
    assert encoder.bridge_after("some thought") == "\n</think>\n\n#### "
    assert encoder.bridge_after("done</think>\n") == "#### "
    encoder.observe(["<think>a</think>\n#### 3"], [""])
    assert encoder.bridge_after("<think>some thought") == "\n</think>\n\n#### "
    assert encoder.bridge_after("no thought") == "\n#### "
    assert encoder.bridge_after("") == "<think>\n\n</think>\n\n#### "
    encoder.thinking = False
    assert encoder.bridge_after("a line") == "\n#### "
    assert encoder.bridge_after("a line\n") == "#### "
    assert encoder.bridge_after("") == "#### "
    assert encoder.closing() == "<|im_end|>"


def test_probe_tokens_are_the_models_own_and_count_from_the_answer() -> None:
    encoder = ProbeEncoder(BYTES, bridge="x = ", terminator="<|im_end|>")
    ids, skip = encoder.encode("x = ", "42")
    assert BYTES.decode(ids) == "x = 42<|im_end|>"
    assert BYTES.decode(ids[skip:]).strip() == "42<|im_end|>"
    assert ids[-1] == BYTES.eos_token_id


@pytest.mark.parametrize("end", ["<|im_end|>", "</s>", "<end_of_turn>", "<｜end▁of▁sentence｜>"])
@pytest.mark.parametrize("text", ["The answer is 5.", "#### 5", "So \\boxed{5}.", "```py\n5\n```"])
def test_what_ends_a_response_is_no_part_of_its_answer(text: str, end: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": end})
    encoder = ProbeEncoder(tokenizer)
    encoder.observe([text + end], [""])
    for response in (text + end, text + end + "\n", text + end + tokenizer.pad_token, f"{end}{text}{end}{end}"):
        assert encoder.answer_of(response) == "5"


def test_one_response_in_many_does_not_make_a_model_think() -> None:
    encoder = ProbeEncoder(BYTES)
    for stray in ("</think> #### 3", "<think> is a tag\n#### 3"):
        encoder.observe(["#### 3"] * 9 + [stray], [""] * 10)
        assert encoder.bridge_after("a line") == "\n#### "
    assert encoder.bridge_after("<think>a line") == "\n</think>\n\n#### "  # this one does
    encoder.observe(["#### 3"] * 4 + ["a</think>#### 3"] * 6, [""] * 10)
    assert encoder.bridge_after("a line") == "\n</think>\n\n#### "


def test_an_end_of_sequence_that_is_called_unknown_ends_a_probe() -> None:
    """GPT-2 and Pythia: no character is unknown to tokens of bytes."""
    tokenizer = byte_tokenizer()
    tokenizer.unk_token = tokenizer.eos_token
    encoder = ProbeEncoder(tokenizer, answer_format=FORMATS["hash"])
    ids, skip = encoder.encode("\n#### ", "42")
    assert tokenizer.decode(ids[skip:]) == "42<|im_end|>"


def test_answers_beyond_the_limit_are_not_encoded() -> None:
    assert ProbeEncoder(BYTES, max_probe_tokens=4).encode("b ", "1 2 3 4 5 6 7") is None
