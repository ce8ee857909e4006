"""JSON lines, one by one: what cannot be read is told with its line number and left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class BadLine:
    """Line ``number`` (from 1) of a file was left out, because of ``reason``."""

    number: int
    reason: str


def read_lines(path: Path, parse: Callable[[int, Mapping[str, Any]], T]) -> tuple[list[T], list[BadLine]]:
    """``parse(line number, object)`` of every line, and the lines that are broken; empty lines do not count.

    Raises:
        ValueError: no such file, or one of which not a single line can be read; the message has the first reason.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise ValueError(f"{path}: expected a file of JSON lines, got {found}")
    good: list[T] = []
    bad: list[BadLine] = []
    for number, line in _numbered(path):
        try:
            good.append(parse(number, _object(line)))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            bad.append(BadLine(number, _reason(error)))
    if not good:
        raise ValueError(
            f"{path}, line {bad[0].number}: {bad[0].reason} (no line of {len(bad)} can be read)"
            if bad
            else f"{path}, line 1: expected JSON lines, got an empty file"
        )
    return good, bad


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _object(line: bytes) -> Mapping[str, Any]:
    record = json.loads(line)
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, got {type(record).__name__}")
    if (
        b"\\u" in line or b"\xed" in line
    ):  # half a surrogate pair is no text: no tokenizer and no terminal takes it
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no complete JSON: {error.msg} at character {error.pos + 1}; is the file truncated?"
    if isinstance(error, UnicodeEncodeError):
        return "no Unicode text: half a surrogate pair in it"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 text: {error.reason} at byte {error.start + 1}"
    return str(error) or type(error).__name__
