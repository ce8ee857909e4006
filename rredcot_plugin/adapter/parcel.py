"""What crosses from one process to another: dataclasses, lists and tensors as plain arrays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NARROW = 1 << 15


@dataclass(frozen=True)
class _Array:
    """A tensor on its way; int64 is ``narrowed`` to int16 where it fits, as numbers of segments do."""

    data: NDArray[Any]
    narrowed: bool = False

    @classmethod
    def of(cls, data: NDArray[Any]) -> _Array:
        fits = data.dtype == np.int64 and data.size > 0 and data.min() >= -NARROW and data.max() < NARROW
        return cls(data.astype(np.int16), narrowed=True) if fits else cls(data)

    def tensor(self) -> Tensor:
        """A copy: what Ray hands out must not be written to."""
        return torch.from_numpy(self.data.astype(np.int64) if self.narrowed else self.data.copy())


@dataclass(frozen=True)
class _Parcel:
    """A dataclass on its way."""

    kind: type
    fields: dict[str, Any]


def parcel(x: Any) -> Any:
    """``x`` for another process, with arrays for its tensors, down to the fields of dataclasses and lists of tensors.

    A tensor would take its whole storage along, which for a row of a jagged tensor is the batch; and Ray reads arrays
    without copying them.
    """
    if isinstance(x, torch.Tensor):
        return _Array.of(x.detach().cpu().numpy())
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return _Parcel(type(x), {f.name: parcel(getattr(x, f.name)) for f in dataclasses.fields(x)})
    if type(x) is tuple:
        return tuple(map(parcel, x))
    if type(x) is dict:
        return {name: parcel(value) for name, value in x.items()}
    if isinstance(x, list) and x and isinstance(x[0], (torch.Tensor, Segments)):
        return list(map(parcel, x))
    return x


def unparcel(x: Any) -> Any:
    """What ``parcel`` was given."""
    if isinstance(x, _Array):
        return x.tensor()
    if isinstance(x, _Parcel):
        return x.kind(**{name: unparcel(value) for name, value in x.fields.items()})
    if type(x) is tuple:
        return tuple(map(unparcel, x))
    if type(x) is dict:
        return {name: unparcel(value) for name, value in x.items()}
    if isinstance(x, list) and x and isinstance(x[0], (_Array, _Parcel)):
        return list(map(unparcel, x))
    return x
