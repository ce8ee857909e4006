"""The one error of this package that is about the model and not about an argument."""

from __future__ import annotations


class UnsupportedModelError(RuntimeError):
    """The model's attention cannot be forked at a boundary; `backend="batched"` works with any causal LM."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'{reason} Use backend="batched" for this model: it needs plain forwards only.')
