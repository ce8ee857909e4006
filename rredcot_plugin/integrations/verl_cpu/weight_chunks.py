"""Weights as byte strings for the checkpoint engine `cpu_store`, and back.

A chunk is a JSON header (name, shape and dtype of the weight, offset of the chunk in it), the header's length in
front, and the weight's bytes after it. Reading it runs no code of the sender, unlike a pickle, and every number in the
header is checked before memory is taken for it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}

LENGTH_BYTES = 4
LARGEST_HEADER = 1 << 16


@dataclass(frozen=True)
class Chunk:
    """Some consecutive bytes of one weight."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    data: bytes

    @property
    def weight_bytes(self) -> int:
        """Size of the whole weight."""
        return math.prod(self.shape) * self.dtype.itemsize


def pack(chunk: Chunk) -> bytes:
    """The chunk as bytes.

    Raises:
        ValueError: a dtype that the receiver would refuse.
    """
    dtype = str(chunk.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ValueError(f"cpu_store: weight {chunk.name} has dtype {dtype}; expected one of {', '.join(DTYPES)}")
    fields = {"name": chunk.name, "shape": list(chunk.shape), "dtype": dtype, "offset": chunk.offset}
    return _with_header(fields, chunk.data)


def pack_end(chunks: int) -> bytes:
    """What follows the last chunk: how many there were."""
    return _with_header({"chunks": chunks}, b"")


def unpack(message: bytes) -> Chunk | int:
    """What ``pack`` or ``pack_end`` was given.

    Raises:
        ValueError: the message is neither, or its sizes contradict each other.
    """
    header, data = _header_of(message)
    if header.keys() == {"chunks"} and _is_count(header["chunks"]) and not data:
        return int(header["chunks"])
    if header.keys() != {"name", "shape", "dtype", "offset"}:
        raise ValueError(f"cpu_store: expected the header of a weight, got the keys {sorted(header)}")
    name, shape, dtype, offset = (header[key] for key in ("name", "shape", "dtype", "offset"))
    if not isinstance(name, str) or not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise ValueError(f"cpu_store: expected a name and a shape, got name={name!r}, shape={shape!r}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"cpu_store: weight {name} has dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    chunk = Chunk(name, tuple(shape), DTYPES[dtype], offset, data)
    if not data or not _is_count(offset) or offset + len(data) > chunk.weight_bytes:
        raise ValueError(
            f"cpu_store: weight {name} of shape {shape} and dtype {dtype} has {chunk.weight_bytes} bytes, got a chunk of "
            f"{len(data)} bytes at offset {offset!r}"
        )
    return chunk


class WeightAssembler:
    """Puts the chunks of one weight after the other together."""

    def __init__(self) -> None:
        self._chunks = 0
        self._first: Chunk | None = None
        self._buffer = bytearray()

    def add(self, chunk: Chunk) -> tuple[str, torch.Tensor] | None:
        """The weight, once ``chunk`` was its last one.

        Raises:
            ValueError: ``chunk`` does not continue what came before it.
        """
        first = self._first or chunk
        expected = (first.name, first.shape, first.dtype, len(self._buffer))
        if (chunk.name, chunk.shape, chunk.dtype, chunk.offset) != expected:
            raise ValueError(
                f"cpu_store: expected weight {first.name} from byte {len(self._buffer)} on, got {chunk.name} "
                f"{list(chunk.shape)} {chunk.dtype} from byte {chunk.offset} on"
            )
        self._chunks += 1
        self._first = first
        self._buffer += chunk.data
        if len(self._buffer) < first.weight_bytes:
            return None
        weight = torch.frombuffer(self._buffer, dtype=first.dtype).view(first.shape)
        self._first, self._buffer = None, bytearray()
        return first.name, weight

    def finish(self, chunks: int) -> None:
        """Raise ``ValueError`` unless that many chunks have arrived, and no weight is incomplete."""
        if self._first is not None:
            raise ValueError(
                f"cpu_store: weight {self._first.name} ends after {len(self._buffer)} of its {self._first.weight_bytes} bytes"
            )
        if chunks != self._chunks:
            raise ValueError(f"cpu_store: {self._chunks} of {chunks} chunks of the weights arrived")


def _with_header(fields: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(fields).encode()
    return len(header).to_bytes(LENGTH_BYTES, "big") + header + data


def _header_of(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a message, and what comes after it."""
    end = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES], "big")
    if not LENGTH_BYTES < end <= min(len(message), LENGTH_BYTES + LARGEST_HEADER):
        raise ValueError(
            f"cpu_store: expected a chunk of weights with its header, got {len(message)} bytes that begin with {message[:16]!r}"
        )
    try:
        header = json.loads(message[LENGTH_BYTES:end])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cpu_store: the header of a chunk of weights is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"cpu_store: expected a header with keys, got {type(header).__name__}")
    return header, message[end:]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
