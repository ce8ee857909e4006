"""What a sandboxed program may use."""

from __future__ import annotations

from dataclasses import asdict, dataclass

_LEAST = {"memory_bytes": 64 << 20}  # below that the interpreter itself does not start


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandboxed process tree. ``ValueError`` names a key that is not a positive integer.

    ``cpu_seconds``, ``memory_bytes`` (address space) and ``file_bytes`` (one file) hold for each process;
    ``wall_seconds``, ``processes`` (threads count) and ``output_bytes`` (standard output and error together)
    for all of them. The writable folder holds 16 × ``file_bytes`` in at most 1023 files.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    processes: int = 16
    output_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            kinds = (int, float) if key == "wall_seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 62:
                raise ValueError(
                    f"{key} must be a positive {'number' if float in kinds else 'integer'}, got {value!r}"
                )
            if value < _LEAST.get(key, 0):
                raise ValueError(f"{key} must be at least {_LEAST[key]}, got {value!r}")
