"""Checks of what users hand in: tensors, their shapes and numbers, and names. Each raises ``ValueError`` that says what
was expected and what came."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from rredcot_plugin.registry import nearest

SLACK = 1e-3
"""How far a share may lie outside [0, 1] by rounding."""


def check_tensor(name: str, found: Any) -> None:
    """Raise ``ValueError`` unless ``found`` is a tensor."""
    if not isinstance(found, torch.Tensor):
        way_out = "" if found is None else "; torch.as_tensor makes one"
        raise ValueError(f"{name}: expected a torch.Tensor, got {type(found).__name__}{way_out}")


def check_shape(name: str, tensor: torch.Tensor, expected: Sequence[int]) -> None:
    """Raise ``ValueError`` naming ``name``, the expected and the actual shape; or the type of what is not a tensor."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name}: expected shape {tuple(expected)}, got {tuple(tensor.shape)}")


def check_integers(name: str, tensor: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``tensor`` is a tensor of integers."""
    check_tensor(name, tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {tensor.dtype}")


def check_flags(name: str, tensor: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``tensor`` is a tensor of true and false."""
    check_tensor(name, tensor)
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name}: expected torch.bool, got {tensor.dtype}")


def check_finite(name: str, tensor: torch.Tensor, where: torch.Tensor) -> None:
    """Raise ``ValueError`` if ``tensor`` has a NaN or an infinity where ``where`` is true."""
    if bool(torch.isfinite(tensor.sum())):  # one pass that reads only; nearly always all there is to do
        return
    bad = int((~torch.isfinite(tensor) & where).sum())
    if bad:
        raise ValueError(f"{name}: expected finite numbers, got {bad} that are NaN or infinite")


def check_shares(name: str, tensor: torch.Tensor, where: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``tensor`` lies in [0, 1] where ``where`` is true, up to rounding."""
    inside = (tensor >= -SLACK) & (tensor <= 1 + SLACK)
    bad = (~inside & where).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        found = float(tensor[row, column])
        raise ValueError(f"{name}: expected numbers from 0 to 1, got {found:g} at row {row}, column {column}")


def check_num_segments(num_segments: torch.Tensor, rows: int, width: int) -> None:
    """Raise ``ValueError`` unless there is a count from 0 to ``width`` for each row."""
    check_shape("num_segments", num_segments, (rows,))
    if bool(((num_segments < 0) | (num_segments > width)).any()):
        low, high = int(num_segments.min()), int(num_segments.max())
        raise ValueError(f"num_segments: expected counts from 0 to {width}, got {low} to {high}")


def check_names(owner: object, attribute: str, allowed: Collection[str] | None = None) -> tuple[str, ...]:
    """The names in a class attribute of something that a user wrote, () where it has none.

    Raises:
        ValueError: a text in place of a tuple, whose letters would be taken for names; a name that is not ``allowed``.
    """
    found, name = getattr(owner, attribute, ()), f"{type(owner).__name__}.{attribute}"
    if isinstance(found, str):
        raise ValueError(f"{name}={found!r}: expected a tuple of names, such as ({found!r},)")
    for one in found:
        if allowed is not None and one not in allowed:
            known = sorted(allowed)
            raise ValueError(f"{name}: unknown name {one!r}.{nearest(str(one), known)} Known: {', '.join(known)}")
    return tuple(found)
