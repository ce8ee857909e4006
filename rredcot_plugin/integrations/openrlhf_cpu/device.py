"""The functions of ``torch.cuda`` that OpenRLHF calls, answered for a machine that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WITHOUT_EFFECT = ("set_device", "synchronize", "empty_cache", "current_stream")


class Device(str):
    """ "cpu" for ``.to()`` and ``device=``, and 0 in ``f"cuda:{…}"`` (replay_buffer.py)."""

    def __format__(self, spec: str) -> str:
        return "0"


def install() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: Device("cpu")
    for name in WITHOUT_EFFECT:
        setattr(cuda, name, _nothing())


def _nothing() -> Callable[..., None]:
    """A function of its own each time: torch's compiler keeps a rule for each, and refuses one that has two."""

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    return nothing
