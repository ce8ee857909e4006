"""JSON lines, one by one: what cannot be read is told with its line number and left out."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

UNREADABLE = (ValueError, TypeError, ArithmeticError, RecursionError)
"""What ``json_object`` and a parser of records raise at a broken line."""

EMPTY = "expected JSON lines, got an empty file"


@dataclass(frozen=True)
class BadLine:
    """Line ``number`` (from 1) of a file was left out, because of ``reason``."""

    number: int
    reason: str


def read_lines(path: Path, parse: Callable[[int, Mapping[str, Any]], T]) -> tuple[list[T], list[BadLine]]:
    """``parse(line number, object)`` of every line, and the lines that are broken; empty lines do not count.

    A file that is one JSON array of objects is read too; the line number is then the place in the array, from 1.

    Raises:
        ValueError: no such file, or one of which not a single line can be read; the message has the first reason.
    """
    if not path.is_file():
        raise ValueError(f"{path}: {why_not_read(path)}")
    good, bad = sort_lines(path, parse)
    if not good:
        first, of = bad[0], f" (no line of {len(bad)} can be read)"
        raise ValueError(f"{path}, line {first.number}: {first.reason}{of if first.reason != EMPTY else ''}")
    return good, bad


def sort_lines(path: Path, parse: Callable[[int, Mapping[str, Any]], T]) -> tuple[list[T], list[BadLine]]:
    """As ``read_lines``, of a file that is there; one of which nothing can be read has only broken lines, an empty one too."""
    good: list[T] = []
    bad: list[BadLine] = []
    for number, line in numbered_objects(path):
        try:
            good.append(parse(number, _unicode_object(line)))
        except UNREADABLE as error:
            bad.append(BadLine(number, reason_of(error)))
    return good, bad if good or bad else [BadLine(1, EMPTY)]


def why_not_read(path: Path) -> str:
    """Why a path is not a file that can be read, for a message."""
    if path.is_dir():
        return "expected a file of JSON lines, got a folder"
    if path.exists():
        return "expected a file of JSON lines, got a pipe or a device, which cannot be read twice; write it to a file first"
    return "no such file"


def numbered_objects(path: Path) -> Iterable[tuple[int, bytes]]:
    """Number and text of every object of a file: of its lines that are not empty, or of the one array that it is."""
    return array_of_objects(path) or _numbered(path)


def array_of_objects(path: Path) -> list[tuple[int, bytes]]:
    """The objects of a file that is one JSON array of them, as lines; nothing for any other file."""
    with path.open("rb") as file:
        if not file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            return []
    try:
        records = json.loads(path.read_bytes())
    except UNREADABLE:
        return []
    if not all(isinstance(record, dict) for record in records):
        return []
    return [(number, json.dumps(record).encode()) for number, record in enumerate(records, start=1)]


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def json_object(line: bytes) -> dict[str, Any]:
    """The JSON object of one line; its texts may hold half a surrogate pair.

    Raises:
        ValueError: not JSON, or not an object.
        RecursionError: nested too deeply.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, got {type(record).__name__}")
    return record


def _unicode_object(line: bytes) -> dict[str, Any]:
    record = json_object(line)
    if (
        b"\\u" in line or b"\xed" in line
    ):  # half a surrogate pair is not text: no tokenizer and no terminal takes it
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    return record


def reason_of(error: Exception) -> str:
    """Why a line cannot be read, for a reader who does not know the code."""
    if isinstance(error, json.JSONDecodeError):
        is_cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        guess = "is the file truncated?" if is_cut else "expected one object per line"
        if error.doc.strip() in ("{", "["):
            guess = "is it written over several lines? `jq -c .` writes an object per line"
        kind = _kind(error.doc[:4].encode("utf-8", "surrogatepass"))
        return f"no complete JSON: {error.msg} at character {error.pos + 1}; {kind or guess}"
    if isinstance(error, UnicodeEncodeError):
        return "no Unicode text: half a surrogate pair in it"
    if isinstance(error, UnicodeDecodeError):
        kind = _kind(error.object) or "expected JSON lines, not compressed"
        return f"no UTF-8 text: {error.reason} at byte {error.start + 1}; {kind}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error) or type(error).__name__


def _kind(line: bytes) -> str:
    """What a file is that begins so, with the way to JSON lines; empty where it is nothing known."""
    if line.startswith(b"\x1f\x8b"):
        return "expected JSON lines, not compressed: this is gzip, `gzip -dc` unpacks it"
    if line.startswith(b"PAR1"):
        return (
            "expected JSON lines, got Parquet: pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True) "
            "writes them"
        )
    return ""
