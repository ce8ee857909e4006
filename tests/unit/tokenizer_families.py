"""Small tokenizers of every family."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import rredcot_plugin as rr
from rredcot_plugin.text.alignment import TokenBytes

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


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    return FAMILIES[family]()


@cache
def table_of(family: str) -> TokenBytes:
    return TokenBytes.from_tokenizer(tokenizer_of(family))
