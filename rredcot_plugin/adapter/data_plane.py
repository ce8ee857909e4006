"""What a trainer gives for credit and gets back: the one interface that a host has to write.

A host calls `pipeline.assign_credit` between its log-prob pass and its policy update. What that needs of it, in the
order of a step:

1. rows of the batch: tokens, mask, rewards per token, group ids (``rows``, ``group_ids``), before the pass;
2. room for the probes that go through the pass with each row (``put_probes``), or none, and then a way to run rows of its
   own through its engine;
3. log-probs of the probes (``answers``), and the actor's signals of the response tokens (``signals``), after it;
4. what the reward function saw of each row, for estimators that ask it again (``reward_fields``), and any other number per
   token, a critic's values among them (``numbers``).

It gets ``Credit``: advantages and returns (B, T), metrics, and a calibrator whose ``state_dict`` goes into its checkpoint.

`integrations/verl/batch.py` reads and writes TransferQueue; ``tests/contract/memory.py`` keeps the same in memory, and drives
a whole step without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import Index


class Source(Protocol):
    """Where the rows of a batch lie, for whoever reads them; light enough to be sent to another process.

    Everything is given and taken in the order of the rows.
    """

    def take(self, index: Index) -> Source:
        """Some of these rows."""

    def group_ids(self) -> list[str]:
        """The prompt that each row answers."""

    def rows(self) -> PromptedRollouts:
        """The rows with their prompts, without texts; rewards without what the host adds to them later."""

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        """What the log-prob pass has found of the response tokens, by field of ``Rollouts``: ``log_probs``, and ``entropies``
        and ``sum_pi_squared`` where the host has them; (rows, ``width``), 0 in the padding."""

    def put_probes(self, vectors: Sequence[torch.Tensor]) -> None:
        """Lay down the probes of each row (`probes.layout.pack`) where the log-prob pass finds them."""


class DataPlane(Source, Protocol):
    """Some rows of a batch, with all that a step reads and writes beside them."""

    def take(self, index: Index) -> DataPlane:
        """Some of these rows."""

    def numbers(self, fields: Sequence[str], width: int) -> list[torch.Tensor]:
        """Fields of numbers of response tokens, each as (rows, ``width``); 0 in the padding."""

    def turn_values(self, width: int) -> torch.Tensor:
        """What the environment said of the states in which turns begin (`values.environment.turn_values`), (rows, ``width``)."""

    def answers(self) -> list[torch.Tensor]:
        """Per row ``[seconds, log_prob_1, …]`` of the probes that were laid down for it (``transfer_fields``)."""

    def put_answer_starts(self, starts: Sequence[int]) -> None:
        """Where each row's answer begins, counted from the start of the prompt; −1 for none (``transfer_fields``)."""

    def reward_fields(self) -> list[dict[str, Any]]:
        """What the reward function gets of each row beside its tokens."""


OpenRows = Callable[[Any, Sequence[int]], DataPlane]
"""(the host's batch, row numbers) -> these rows."""
