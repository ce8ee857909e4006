"""Rollouts with what a Rollouts batch leaves out: the prompts that probes stand behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rredcot_plugin.types import Rollouts

PROMPT_TAIL = 16
"""Tokens of the prompt's end that are looked at for an opened ``<think>``."""


@dataclass(frozen=True)
class StepRows:
    """The active rows of a batch: B responses, right-padded to T tokens."""

    rollouts: Rollouts
    prompts: list[torch.Tensor]
    prompt_tails: list[str]
    lengths: list[int]
