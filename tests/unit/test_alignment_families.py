"""Tokens and characters of every family of tokenizers, built here from a few hundred lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import rredcot_plugin as rr
from rredcot_plugin.text.alignment import REPLACEMENT, TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder

DEMO = Path(rr.__file__).parent / "tiny" / "checkpoint"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
ADDED = ["<think>", "</think>", "<|im_end|>"]
EOS = "<|im_end|>"
LINES = [
    line
    for i in range(60)
    for line in (
        f"First, {i} + {i * 7} = {i * 8}, so the sum is {i * 8}.",
        f"Wait, that is wrong: {i} * {i} = {i * i}.",
        f"So the answer is \\boxed{{{i * i}}}.",
        "Preis: 5 €, naïve 你好。 然后 שלום مرحبا 🙂🙂 é é",
        "def f(x):\n    return x + 1\n\nprint(f(2))",
    )
]


def wrapped(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    """With ``<think>`` and friends added, as chat models have them."""
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, **special)


def trained(tokenizer: Tokenizer, trainer: Any) -> dict[str, Any]:
    """What a trainer makes of ``LINES``, as the library writes it down."""
    tokenizer.train_from_iterator(LINES, trainer)
    return json.loads(tokenizer.to_str())["model"]


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained(tokenizer, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    return wrapped(tokenizer)


def llama(prepend_scheme: str) -> PreTrainedTokenizerFast:
    """BPE over ``▁`` with bytes for what it does not know; the decoder takes the space in front away again."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.BpeTrainer(vocab_size=350, limit_alphabet=60, show_progress=False)
    model = trained(tokenizer, trainer)
    pieces = ["<unk>", *BYTE_TOKENS, *model["vocab"]]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return wrapped(tokenizer, unk_token="<unk>")


def gemma() -> PreTrainedTokenizerFast:
    """As Llama, with spaces replaced by a normalizer, none put in front, and runs of spaces among the added tokens."""
    tokenizer = llama("never").backend_tokenizer
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("\n\n", normalized=False)])
    return wrapped(tokenizer, unk_token="<unk>")


def unigram(prepend_scheme: str = "always") -> PreTrainedTokenizerFast:
    """T5 and XLM-R: unknown characters are lost, the decoder is ``Metaspace``."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained(tokenizer, trainer)
    return wrapped(tokenizer, unk_token="<unk>")


def characters(decoder: Any = None) -> PreTrainedTokenizerFast:
    """One token a character of the training text."""
    vocab = {char: i for i, char in enumerate(["<unk>", *sorted(set("".join(LINES)))])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoder or decoders.Fuse()
    return wrapped(tokenizer, unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """BERT: ``##`` joins, everything else has a space in front."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    tokenizer.decoder = decoders.WordPiece()
    return wrapped(tokenizer, unk_token="<unk>")


def no_decoder() -> PreTrainedTokenizerFast:
    """Words with nothing that joins them: the library puts spaces between."""
    vocab = {word: i for i, word in enumerate(["<unk>", *sorted({w for line in LINES for w in line.split()})])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrapped(tokenizer, unk_token="<unk>")


def demo() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(DEMO)


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "llama_first": lambda: llama("first"),
    "llama_always": lambda: llama("always"),
    "llama_never": lambda: llama("never"),
    "gemma": gemma,
    "unigram_always": unigram,
    "unigram_first": lambda: unigram("first"),
    "characters": characters,
    "word_piece": word_piece,
    "no_decoder": no_decoder,
    "demo": demo,
}
KEEPS_EVERY_CHARACTER = ("byte_level", "llama_first", "llama_always", "llama_never", "gemma")
"""Families that encode any text; the others know the characters of ``LINES`` alone."""
each_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    return FAMILIES[family]()


@cache
def table_of(family: str) -> TokenBytes:
    return TokenBytes.from_tokenizer(tokenizer_of(family))


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


# Segmenters on such traces.

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


# Probes.

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


# What cannot be aligned.

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


# Real SentencePiece models, as transformers reads them.


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
