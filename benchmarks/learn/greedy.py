"""Answers without chance: what a policy has learned, whatever it has merely become sure of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHARPER = 1e4
"""Times the logits: two tokens share the probability only if their logits differ by less than a thousandth."""


@contextmanager
def greedy(model: Any) -> Iterator[None]:
    """While this is open, samples of ``model`` are its most probable tokens."""
    hook = model.get_output_embeddings().register_forward_hook(lambda module, given, logits: logits * SHARPER)
    try:
        yield
    finally:
        hook.remove()
