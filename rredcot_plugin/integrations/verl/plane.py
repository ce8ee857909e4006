"""The data plane: what a credit step reads of a batch, and what it writes beside it.

``runner.py`` and its parts reach rows through this protocol alone, so a host that keeps them elsewhere than in
TransferQueue (``batch.BatchSource``) brings its own reading and writing, and a test keeps them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from rredcot_plugin.adapter.summary import Index
from rredcot_plugin.integrations.verl.credit_workers import Source


class DataPlane(Source, Protocol):
    """Some rows of a batch. Everything is given and taken in their order; T is the width of the widest response.

    ``Source`` has what the crew needs: ``group_ids``, ``rows``, ``signals`` (by the names of ``batch.SIGNALS``) and
    ``put_probes``.
    """

    def take(self, index: Index) -> DataPlane:
        """Some of these rows."""

    def numbers(self, fields: Sequence[str], width: int) -> list[torch.Tensor]:
        """Fields of numbers of response tokens, each as (rows, ``width``); 0 in the padding."""

    def answers(self) -> list[torch.Tensor]:
        """Per row ``[seconds, log_prob_1, …]`` of the probes that were laid down for it (``transfer_fields``)."""

    def put_answer_starts(self, starts: Sequence[int]) -> None:
        """Where each row's answer begins, counted from the start of the prompt; −1 for none (``transfer_fields``)."""

    def reward_fields(self) -> list[dict[str, Any]]:
        """What the reward function gets of each row beside its tokens."""


OpenRows = Callable[[Any, Sequence[int]], DataPlane]
"""(the host's batch, row numbers) -> these rows."""
