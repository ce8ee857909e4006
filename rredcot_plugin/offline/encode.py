"""Rows as tokens: prompt and response of each, and the character span of every response token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rredcot_plugin.adapter.prompted_rollouts import PROMPT_TAIL, PromptedRollouts
from rredcot_plugin.offline.input_columns import Row
from rredcot_plugin.offline.prompts import PromptWriter
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Rollouts


@dataclass(frozen=True)
class EncodedRow:
    """Token ids of prompt and response; ``text`` and ``spans`` are what the response's tokens stand for."""

    row: Row
    prompt: list[int]
    response: list[int]
    text: str
    spans: Any
    prompt_tail: str
    templated: bool

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.response]


class RowEncoder:
    """Encodes rows for one tokenizer."""

    def __init__(self, tokenizer: Any, prompts: str = "auto") -> None:
        self.tokenizer = tokenizer
        self.table = TokenBytes.from_tokenizer(tokenizer)
        self.writer = PromptWriter(tokenizer, prompts)

    def __call__(self, row: Row) -> EncodedRow:
        """Raises ValueError for a prompt without tokens, or one that cannot be templated."""
        text, templated = self.writer.write(row)
        prompt = self._ids(text, special=not templated)
        if not prompt:
            raise ValueError("prompt: expected at least one token, got an empty text")
        response = self._ids(row.response)
        found, spans = self.table.align(np.array(response, dtype=np.int64))
        tail, _ = self.table.align(np.array(prompt[-PROMPT_TAIL:], dtype=np.int64))
        return EncodedRow(row, prompt, response, found, spans, tail, templated)

    def _ids(self, text: str, special: bool = False) -> list[int]:
        """Token ids; with ``special`` the tokenizer's own beginning of a text, unless it stands there."""
        begin = self.tokenizer.bos_token
        special = special and not (begin and text.startswith(begin))
        ids = list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
        # some tokenizers end a text as well, and a prompt goes on
        ends = special and bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return ids[:-1] if ends and not text.endswith(str(self.tokenizer.eos_token)) else ids


def step_rows(rows: Sequence[EncodedRow]) -> PromptedRollouts:
    """A batch of rows, padded on the right; the reward stands on the last token of a response."""
    lengths = [len(row.response) for row in rows]
    width = max([1, *lengths])
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    rewards = torch.zeros(len(rows), width)
    outcomes = torch.tensor([row.row.reward for row in rows], dtype=torch.float64).float()  # huge ones become inf
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
    for i, row in enumerate(rows):
        ids[i, : lengths[i]] = torch.tensor(row.response, dtype=torch.int64)
        rewards[i, max(0, lengths[i] - 1)] = outcomes[i]
    rollouts = Rollouts(
        token_ids=ids,
        response_mask=mask,
        rewards=rewards,
        group_ids=[row.row.group for row in rows],
        texts=[row.text for row in rows],
        token_offsets=[row.spans for row in rows],
        ground_truths=[row.row.ground_truth for row in rows],
        references=[row.row.references for row in rows],
    )
    prompts = [torch.tensor(row.prompt, dtype=torch.int64) for row in rows]
    said = [row.row.process_rewards for row in rows]
    return PromptedRollouts(rollouts, prompts, [row.prompt_tail for row in rows], lengths, told=said)
