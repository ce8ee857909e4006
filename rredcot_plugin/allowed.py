"""What an option may be, and what it stands for: each kind checks a value, naming key, value and way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

from rredcot_plugin.registry import check_count, check_number, nearest

NAMED = "named"
"""The reason of a choice that was made by whoever wrote the option."""


@dataclass(frozen=True)
class Choice:
    """The ``value`` that an option stands for, and the ``reason`` for it: one sentence without a full stop."""

    value: Any
    reason: str


class Allowed(Protocol):
    """``str()`` of it stands in the configuration reference."""

    def check(self, key: str, value: Any) -> None:
        """Raise ``ValueError`` unless ``value`` is allowed for ``key``."""


@dataclass(frozen=True)
class OneOf:
    """One of ``names``; None too where ``optional``."""

    names: tuple[str, ...]
    optional: bool = False

    def check(self, key: str, value: Any) -> None:
        if value in self.names or (value is None and self.optional):
            return
        hint = nearest(str(value), list(self.names))
        raise ValueError(f"{key}={value!r}:{hint} Allowed: {', '.join(self.names)}")

    def __str__(self) -> str:
        return ", ".join((*self.names, "null") if self.optional else self.names)


@dataclass(frozen=True)
class Number:
    """A finite number in [``low``, ``high``]; None too where ``optional``, ``auto`` too where ``automatic``."""

    low: float
    high: float = float("inf")
    optional: bool = False
    automatic: bool = False

    def check(self, key: str, value: Any) -> None:
        if (value is None and self.optional) or (value == "auto" and self.automatic):
            return
        try:
            check_number(key, value, self.low, self.high)
        except ValueError as error:
            raise ValueError(f"{error}, or 'auto'" if self.automatic else str(error)) from None

    def __str__(self) -> str:
        bounds = f"≥ {self.low:g}" if self.high == float("inf") else f"{self.low:g} to {self.high:g}"
        return f"number {bounds}" + (", null" if self.optional else "") + (", auto" if self.automatic else "")


@dataclass(frozen=True)
class Count:
    """An integer from 1."""

    def check(self, key: str, value: Any) -> None:
        check_count(key, value)

    def __str__(self) -> str:
        return "integer ≥ 1"


@dataclass(frozen=True)
class CountOrZero:
    """An integer from 0, or ``auto`` where ``automatic``. ``zero`` says in errors what 0 means."""

    zero: str
    automatic: bool = False

    def check(self, key: str, value: Any) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not whole and not (self.automatic and value == "auto"):
            auto = ", or 'auto'" if self.automatic else ""
            raise ValueError(f"{key}={value!r}: expected an integer from 0 ({self.zero}){auto}")

    def __str__(self) -> str:
        return "integer ≥ 0" + (", auto" if self.automatic else "")


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def check(self, key: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise ValueError(f"{key}={value!r}: expected true or false")

    def __str__(self) -> str:
        return "true, false"


@dataclass(frozen=True)
class AutomaticText:
    """A text, or ``auto``."""

    def check(self, key: str, value: Any) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{key}={value!r}: expected a text, or 'auto'")

    def __str__(self) -> str:
        return "text, auto"


@dataclass(frozen=True)
class Folder:
    """The path of a folder, or None. Command lines make other things of some names: 2026 a number."""

    def check(self, key: str, value: Any) -> None:
        if value is not None and not isinstance(value, str | PathLike):
            raise ValueError(
                f"{key}={value!r}: expected the path of a folder as text, such as './{value}', or null"
            )

    def __str__(self) -> str:
        return "folder, null"


@dataclass(frozen=True)
class Named:
    """A registered name, ``"pkg.module:Name"`` or ``{path: file.py, name: Name}``; registries check the name itself."""

    kind: str
    automatic: bool = False

    def check(self, key: str, value: Any) -> None:
        if not isinstance(value, str | Mapping):
            raise ValueError(
                f"{key}={value!r}: expected the name of a {self.kind}, 'pkg.module:Name' or {{path, name}}"
            )

    def __str__(self) -> str:
        names = f'name of a {self.kind}, "pkg.module:Name", {{path: file.py, name: Name}}'
        return f"auto, {names}" if self.automatic else names


@dataclass(frozen=True)
class Free:
    """Whatever ``words`` say; whoever reads the value checks it."""

    words: str

    def check(self, key: str, value: Any) -> None:
        """Nothing to check here."""

    def __str__(self) -> str:
        return self.words
