"""How the tiny model and verl's tool agent loop speak: the tokenizer, and a dialogue as verl's loop puts it together.

Calls are those of verl's `hermes` parser. The words that every call has are a token each, as `<tool_call>` is one for Qwen3:
what is left to learn is when to call, and what.
So are the names of the roles, which shortens a dialogue by a quarter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import prompt_text

CALL_WORDS = ("<tool_call>", '{"name": "calculator", "arguments": {"expression": "', '"}}', "</tool_call>")
ROLES = ("assistant", "tool", "user")
IGNORED = -100


def build_tokenizer(checkpoint: Path = CHECKPOINT) -> PreTrainedTokenizerFast:
    """The tiny reasoner's tokenizer with `CALL_WORDS` and `ROLES`, none of them special: they stay in decoded text."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*CALL_WORDS, *ROLES)])
    return tokenizer


def call(expression: str) -> str:
    """A call of the calculator as the model writes it.

    >>> call("1+1")
    '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>'
    """
    arguments = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return f"<tool_call>{arguments}</tool_call>"


def encode(tokenizer: PreTrainedTokenizerFast, question: str, said: Sequence[str]) -> tuple[list[int], list[int]]:
    """Token ids of a whole dialogue, and the labels: ids where the model speaks, `IGNORED` elsewhere.

    ``said``: expression, result, ..., and last the answer (`word_problems.work`).
    """
    prompt = tokenizer.encode(prompt_text(tokenizer, question))
    ids, labels = list(prompt), [IGNORED] * len(prompt)
    for turn, text in enumerate(said):
        is_answer = turn == len(said) - 1
        if turn % 2 == 0:
            own = tokenizer.encode((text if is_answer else call(text)) + tokenizer.eos_token)
            ids, labels = ids + own, labels + own
        else:  # the newline after <|im_end|> is the template's, not the model's
            told = tokenizer.encode(f"\n<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n")
            ids, labels = ids + told, labels + [IGNORED] * len(told)
    return ids, labels
