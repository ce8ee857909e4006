"""Rollouts with what a Rollouts batch leaves out: the prompts that probes come after."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Rollouts

if TYPE_CHECKING:
    from jaxtyping import Int
    from numpy.typing import NDArray
    from torch import Tensor

PROMPT_TAIL = 32
"""Tokens of the prompt's end that are looked at for where the model's turn begins, and for an opened ``<think>``."""


BETWEEN_OUTPUTS = "\n"
"""Stands in the text of a row between two outputs of its session, so that no word reaches over both."""


@dataclass(frozen=True)
class Output:
    """One output of a session: the prompt that it was sampled after, and the columns of the row that its response fills,
    ``length`` of them from ``start`` on. ``number`` is the host's, ``tail`` the end of the prompt as text."""

    prompt: torch.Tensor
    start: int
    length: int
    number: int = 0
    tail: str = ""


@dataclass(frozen=True)
class PromptedRollouts:
    """B responses, right-padded to T tokens, one of each session that counts.

    A session has several ``outputs`` where its context was rewritten between them. Its row is then their responses one
    after another, with masked columns between: one outcome, one sequence of segments. A state of output j is *its* prompt
    and what of *its* response stands before the state. ``outputs`` is None where every session has one. ``prompts`` are those of
    the first outputs, ``prompt_tails`` the ends of all prompts of a session one after another. ``told`` is what the reward
    function said of parts of each response (`adapter.process_rewards`), None where it said nothing of any.
    """

    rollouts: Rollouts
    prompts: list[torch.Tensor]
    prompt_tails: list[str]
    lengths: list[int]
    outputs: list[list[Output]] | None = None
    told: list[Any] | None = None

    @property
    def token_ids(self) -> Int[Tensor, "B T"]:
        """Those of the rollouts, which have them where prompts are known."""
        assert self.rollouts.token_ids is not None
        return self.rollouts.token_ids

    @property
    def tokens(self) -> int:
        """Of prompts and responses."""
        outputs = [output for row in range(len(self.lengths)) for output in self.outputs_of(row)]
        return sum(len(output.prompt) + output.length for output in outputs)

    def outputs_of(self, row: int) -> list[Output]:
        """The outputs of a row, in their order."""
        if self.outputs is not None:
            return self.outputs[row]
        return [Output(self.prompts[row], 0, self.lengths[row], tail=self.prompt_tails[row])]

    def traces(self) -> list[torch.Tensor]:
        """Prompt and response of every output, row by row: what a model reads."""
        return [
            torch.cat([output.prompt.cpu(), self.token_ids[row, output.start : output.start + output.length]])
            for row in range(len(self.lengths))
            for output in self.outputs_of(row)
        ]

    def read(self, table: TokenBytes) -> PromptedRollouts:
        """These rows with their texts, offsets and prompt tails, read off the tokens."""
        texts, offsets, outputs = [], [], []
        for row in range(len(self.lengths)):
            text, spans = self.text_of(row, table)
            texts.append(text)
            offsets.append(spans)
            ends = [table.align(output.prompt[-PROMPT_TAIL:].cpu().numpy())[0] for output in self.outputs_of(row)]
            own = zip(self.outputs_of(row), ends, strict=True)
            outputs.append([dataclasses.replace(output, tail=end) for output, end in own])
        tails = ["".join(output.tail for output in own) for own in outputs]
        return dataclasses.replace(
            self,
            rollouts=dataclasses.replace(self.rollouts, texts=texts, token_offsets=offsets),
            prompt_tails=tails,
            outputs=None if self.outputs is None else outputs,
        )

    def text_of(self, row: int, table: TokenBytes) -> tuple[str, NDArray[np.int64]]:
        """Text of a response, and the spans (n, 2) of its unmasked tokens; as they are where they are known."""
        known = self.rollouts
        if known.texts is not None and known.token_offsets is not None:
            return known.texts[row], np.asarray(known.token_offsets[row], dtype=np.int64).reshape(-1, 2)
        texts, offsets, before = [], [], 0
        for output in self.outputs_of(row):
            columns = slice(output.start, output.start + output.length)
            text, spans = table.align(self.token_ids[row, columns].cpu().numpy())
            texts.append(text)
            offsets.append(spans[known.response_mask[row, columns].cpu().numpy()] + before)
            before += len(text) + len(BETWEEN_OUTPUTS)
        return BETWEEN_OUTPUTS.join(texts), np.concatenate(offsets)

    def take(self, index: Sequence[int]) -> PromptedRollouts:
        """Some of the rows."""
        prompts, tails = [self.prompts[i] for i in index], [self.prompt_tails[i] for i in index]
        outputs = None if self.outputs is None else [self.outputs[i] for i in index]
        lengths = [self.lengths[i] for i in index]
        told = None if self.told is None else [self.told[i] for i in index]
        return PromptedRollouts(self.rollouts.take(index), prompts, tails, lengths, outputs, told)
