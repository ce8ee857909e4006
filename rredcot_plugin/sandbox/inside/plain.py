"""Plain data crosses between two processes as JSON, and what arrives is of built-in types only.

Never a pickle: the receiver builds every value itself, so neither code nor an ``__eq__`` comes along.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # as in ``typing``, whose import would cost every run milliseconds
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 4 << 20  # of one message; the reader stops before it would read more


class ChannelError(Exception):
    """The other side closed, or sent what is not a message."""


def encode(value: Any) -> Any:
    """``value`` as JSON-able data. ``TypeError`` names a type that is not plain.

    Subclasses (``Counter``, named tuples, ``IntEnum``) travel as the built-in type that they extend.
    """
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, int):
        return ["i", format(int.__index__(value), "x")]  # hexadecimal: Python bounds decimal digits
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    if isinstance(value, dict):
        return ["d", [[encode(k), encode(v)] for k, v in value.items()]]
    for tag, kind in _MANY.items():
        if isinstance(value, kind):
            return [tag, [encode(item) for item in value]]
    raise TypeError(f"{type(value).__name__} is not plain data (numbers, text, bytes, None, and lists, tuples, "
                    "sets, dicts of them)")  # fmt: skip


_MANY: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset}


def decode(data: Any) -> Any:
    """The value that ``encode`` was given, of built-in types. Raises on anything else."""
    if data is None or isinstance(data, bool | str):
        return data
    tag, body = data[0], data[1]
    if tag == "i":
        return int(body, 16)
    if tag == "f":
        return float.fromhex(body)
    if tag == "c":
        return complex(float.fromhex(body), float.fromhex(data[2]))
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "d":
        return {decode(key): decode(value) for key, value in body}
    return _MANY[tag](decode(item) for item in body)


def send(fd: int, message: list[Any]) -> None:
    """Write one message: its length (4 bytes) and JSON. ``ChannelError`` where nobody reads or it is too long."""
    body = json.dumps(message).encode()
    if len(body) > MOST_BYTES:
        raise ChannelError(f"a value of {len(body)} bytes, more than {MOST_BYTES}")
    left = memoryview(len(body).to_bytes(4, "big") + body)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError as error:
        raise ChannelError(f"the other side is gone ({error})") from None


def receive(fd: int) -> list[Any]:
    """Read one message. ``ChannelError`` at the end of the stream, for too long a message and for no list."""
    size = int.from_bytes(_exactly(fd, 4), "big")
    if size > MOST_BYTES:
        raise ChannelError(f"a value of {size} bytes, more than {MOST_BYTES}")
    try:
        message = json.loads(_exactly(fd, size))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ChannelError(f"no message: {type(error).__name__}") from None
    if not isinstance(message, list):
        raise ChannelError("no message: not a list")
    return message


def _exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 16))
        if not part:
            raise ChannelError("the process of the solution ended")
        parts += part
    return bytes(parts)
