"""Rollouts with what a Rollouts batch leaves out: the prompts that probes come after."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Rollouts

if TYPE_CHECKING:
    from jaxtyping import Int
    from numpy.typing import NDArray
    from torch import Tensor

PROMPT_TAIL = 16
"""Tokens of the prompt's end that are looked at for an opened ``<think>``."""


@dataclass(frozen=True)
class PromptedRollouts:
    """The active rows of a batch: B responses, right-padded to T tokens."""

    rollouts: Rollouts
    prompts: list[torch.Tensor]
    prompt_tails: list[str]
    lengths: list[int]

    @property
    def token_ids(self) -> Int[Tensor, "B T"]:
        """Those of the rollouts, which have them where prompts are known."""
        assert self.rollouts.token_ids is not None
        return self.rollouts.token_ids

    @property
    def tokens(self) -> int:
        """Of prompts and responses."""
        return sum(map(len, self.prompts)) + sum(self.lengths)

    def read(self, table: TokenBytes) -> PromptedRollouts:
        """These rows with their texts, offsets and prompt tails, read off the tokens."""
        texts, offsets = [], []
        for row in range(len(self.lengths)):
            text, spans = self.text_of(row, table)
            texts.append(text)
            offsets.append(spans)
        tails = [table.align(prompt[-PROMPT_TAIL:].cpu().numpy())[0] for prompt in self.prompts]
        rollouts = dataclasses.replace(self.rollouts, texts=texts, token_offsets=offsets)
        return dataclasses.replace(self, rollouts=rollouts, prompt_tails=tails)

    def text_of(self, row: int, table: TokenBytes) -> tuple[str, NDArray[np.int64]]:
        """Text of a response, and the spans (n, 2) of its unmasked tokens; as they are where they are known."""
        known, length = self.rollouts, self.lengths[row]
        if known.texts is not None and known.token_offsets is not None:
            return known.texts[row], np.asarray(known.token_offsets[row], dtype=np.int64).reshape(-1, 2)
        text, spans = table.align(self.token_ids[row, :length].cpu().numpy())
        return text, spans[known.response_mask[row, :length].cpu().numpy()]

    def take(self, index: Sequence[int]) -> PromptedRollouts:
        """Some of the rows."""
        prompts, tails = [self.prompts[i] for i in index], [self.prompt_tails[i] for i in index]
        return PromptedRollouts(self.rollouts.take(index), prompts, tails, [self.lengths[i] for i in index])
