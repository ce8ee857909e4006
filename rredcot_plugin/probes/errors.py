"""The one error of this package that is about the model and not about an argument."""

from __future__ import annotations


class UnsupportedModelError(RuntimeError):
    """The model's attention cannot be forked at a boundary, or not be watched."""
