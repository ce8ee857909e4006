"""Models that read images, video or sound beside tokens: what rows made of tokens alone can do for them."""

from __future__ import annotations

from typing import Any

import torch

FIELD = "multi_modal_inputs"
"""The column in which verl keeps what a processor made of a row's images, video and sound."""

TEXT = 1

CONFIDENCE = "algorithm.rredcot.value_estimator=confidence"
"""What works with any rows: it reads verl's own log-prob pass."""


def position_axes(trainer: Any) -> int:
    """How many rows of positions verl gives the model for each sequence: 4 for a processor that counts those of images
    (M-RoPE; the first are those of the text), 1 otherwise."""
    return 4 if hasattr(getattr(trainer, "processor", None), "get_rope_index") else TEXT


def text_positions(length: int, axes: int) -> torch.Tensor:
    """Positions of a sequence of text alone, (length,) or (axes, length)."""
    positions = torch.arange(length)
    return positions if axes == TEXT else positions.repeat(axes, 1)


def refuse_media(trainer: Any, source: Any, asked_by: str, way_out: str = CONFIDENCE) -> None:
    """Rows of ``source`` have nothing but text.

    Whatever makes the engine run forwards of its own is decided here, once for the whole batch: ranks that decided by
    the rows of their own would make different numbers of collective calls and wait for each other.

    Raises:
        ValueError: one has more, which ``asked_by`` would not see.
    """
    if getattr(trainer, "processor", None) is not None and source.has_media():
        raise ValueError(
            f"{asked_by} does not see the images, video or sound that rows of this step have; use {way_out}"
        )
