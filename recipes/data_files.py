"""What the recipes' prepare_data.py share: reading rows, holding out by hash, writing parquet files with checksums."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

MAX_CELL_CHARS = 10_000_000
"""Of a .csv; longer ones come from a quote that is never closed."""
SPLITS = ("train", "val")
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_EXTRA = [("index", pa.int64()), ("split", pa.string()), ("question", pa.string()), ("solution", pa.string())]
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", pa.struct([*_EXTRA, ("references", pa.list_(pa.string()))])),
    ]
)
"""The same for every file, with or without solutions: verl joins several validation files into one data set."""

Problem = TypeVar("Problem")
Located = tuple[str, dict[str, Any]]
"""Where a row stands, and the row."""


class DataError(ValueError):
    """Something about the arguments or the source that the user can put right."""


class OnHub(Protocol):
    """A data set on the Hugging Face hub: `owner/name`, configuration, split."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def split(self) -> str: ...


@dataclass
class Counts:
    """How many rows came in, and why some went."""

    dropped: Counter[str] = field(default_factory=Counter)
    read: int = 0

    def __str__(self) -> str:
        gone = "".join(f"; {reason}: {count}" for reason, count in sorted(self.dropped.items()))
        return f"{self.read} rows read{gone}"


def digest(text: str) -> str:
    """sha256 of a text; of a broken one too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ---- reading ----------------------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Located]:
    """The rows of a .jsonl, .json (a list), .parquet or .csv file; DataError naming file and line if it is broken."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix not in _READERS:
        raise DataError(f"{path}: got a {path.suffix or 'nameless'} file, expected one of {', '.join(FILES)}")
    try:
        return list(_READERS[path.suffix](path))
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not in UTF-8 ({error}); save it in that encoding") from error
    except (ValueError, OSError, pa.ArrowException, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as {path.suffix}: {error}") from error


def plain(value: Any, where: str, column: str) -> Any:
    """A cell that holds one thing; of chat messages the text of the user's, if it is the only one.

    Raises:
        DataError: several things, or a mapping, with row and column.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # what pandas reads of a list
    if isinstance(value, Mapping) and value.get("role") == "user" and isinstance(value.get("content"), str):
        return value["content"]
    if isinstance(value, list) and len(value) == 1:
        return plain(value[0], where, column)
    if isinstance(value, list | Mapping) and value:
        kind = f"{len(value)} entries" if isinstance(value, list) else "a mapping"
        raise DataError(f"{where}, column {column!r}: expected a text, or one message of the user, got {kind}")
    return value if not isinstance(value, list | Mapping) else None  # an empty one


def _json_of(text: str, where: str) -> Any:
    """The value of a JSON text; DataError for what parquet cannot hold, too."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: \\ud800 to \\udfff come in pairs only; repair or drop the row") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    return value


def _read_lines(path: Path) -> Iterator[Located]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            row = _json_of(line, where)
            if not isinstance(row, dict):
                raise DataError(f"{where}: got {type(row).__name__}, expected an object")
            yield where, row


def _read_json(path: Path) -> list[Located]:
    rows = _json_of(path.read_text(encoding="utf-8-sig"), str(path))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected a list of objects")
    return _located(path, rows)


def _read_csv(path: Path) -> Iterator[Located]:
    """By Python's own reader: where every row ends in a comma, pandas takes the first column for names of rows."""
    csv.field_size_limit(MAX_CELL_CHARS)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restval="", strict=True)
        if not reader.fieldnames:
            raise DataError(f"{path}: empty, expected a first line with the names of the columns")
        for number, row in enumerate(reader, start=1):
            if any(row.pop(None, ())):  # type: ignore[call-overload]
                raise DataError(
                    f"{path}, line {reader.line_num}: more cells than columns; quote cells with commas"
                )
            yield f"{path}, row {number}", row


def _located(path: Path, rows: Sequence[dict[str, Any]]) -> list[Located]:
    return [(f"{path}, row {i}", row) for i, row in enumerate(rows, start=1)]


_READERS: dict[str, Callable[[Path], Iterable[Located]]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".parquet": lambda path: _located(path, pd.read_parquet(path).to_dict("records")),
    ".csv": _read_csv,
}
FILES = tuple(_READERS)


def read_hub(source: OnHub) -> Iterable[Mapping[str, Any]]:
    """The rows of a data set on the hub; DataError with the way out without `datasets` or without a connection."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(f"{source.path}: needs `pip install datasets` (or give a local file)") from error
    try:
        return load_dataset(source.path, source.name, split=source.split)
    except Exception as error:  # datasets, hub and network raise what they like
        raise DataError(
            f"{source.path}: could not be loaded ({type(error).__name__}: {error}). Without a connection: download it"
            " elsewhere, and give the file as --source or --exclude"
        ) from error


# ---- splitting --------------------------------------------------------------------------------------------------


def split_and_cut(
    problems: Mapping[str, Problem], val_size: int, max_rows: int | None, seed: int
) -> dict[str, list[Problem]]:
    """`val`: the questions with the smallest hashes; `train`: the rest in an order that follows from the seed.

    `max_rows` bounds both together. The held-out questions do not depend on the seed, so that runs with different
    seeds share their validation set.
    """
    val, train = _keys(problems, val_size, max_rows, seed)
    return {"train": [problems[key] for key in train], "val": [problems[key] for key in val]}


def preselect(
    problems: Mapping[str, Problem], val_size: int, max_rows: int | None, seed: int
) -> dict[str, Problem]:
    """Those that `split_and_cut` may take if a fifth fails a check that is too slow to be run on all."""
    if max_rows is None:
        return dict(problems)
    train = _keys(problems, 0, max_rows + max_rows // 4, seed)[1]
    wanted = {*train, *sorted(problems, key=digest)[: val_size + val_size // 4]}
    return {key: problem for key, problem in problems.items() if key in wanted}


def _keys(problems: Iterable[str], val_size: int, max_rows: int | None, seed: int) -> tuple[list[str], list[str]]:
    by_hash = sorted(problems, key=digest)
    if val_size >= len(by_hash) and val_size:
        raise DataError(f"--val-size {val_size}: leaves nothing to train on, there are {len(by_hash)} problems")
    train = sorted(by_hash[val_size:], key=lambda key: digest(f"{seed}:{key}"))
    return by_hash[:val_size], train if max_rows is None else train[: max(0, max_rows - val_size)]


# ---- writing ----------------------------------------------------------------------------------------------------


def data_source_of(source: str) -> str:
    """The name under which verl logs a source: `val-core/<name>/acc/mean@1`."""
    stem = Path(source).stem if Path(source).suffix in FILES else source
    return re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")


def check_free(out: Path, evals: Sequence[str], force: bool) -> None:
    """DataError if two files would have one name, or one that is there would be overwritten."""
    names = [*SPLITS, *map(data_source_of, evals)]
    if len(set(names)) < len(names):
        raise DataError(f"--eval: two files of the same name among {', '.join(names)}; rename one")
    wanted = [*(f"{name}.parquet" for name in names), "checksums.txt"]
    there = [str(out / name) for name in wanted if (out / name).exists()]
    if there and not force:
        raise DataError(f"{', '.join(there)}: exists; choose another --out, or --force to replace it")


def write_files(
    out: Path, files: Mapping[str, Sequence[Mapping[str, Any]]], schema: pa.Schema | None = SCHEMA
) -> None:
    """<name>.parquet for every name with rows, and checksums.txt for `sha256sum --check`. A file of a name without rows is of
    an earlier run, whose split was another one, and goes."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (name for name, rows in files.items() if not rows):
        (out / f"{name}.parquet").unlink(missing_ok=True)
    lines = [_write(out / f"{name}.parquet", rows, schema) for name, rows in files.items() if rows]
    (out / "checksums.txt").write_text("".join(lines))


def _write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> str:
    """A parquet file, complete or not at all; the line for checksums.txt."""
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), part)
    part.replace(path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{path}: {len(rows)} rows, sha256 {checksum}")
    return f"{checksum}  {path.name}\n"


# ---- command line -----------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser, sources: str, instruction: str) -> None:
    """The options that every recipe has; `sources` is the help of --source."""
    add = parser.add_argument
    add("--source", required=True, help=f"{sources}, or a file ({', '.join(FILES)})")
    add("--out", required=True, type=Path, metavar="DIR", help="folder to write to, made if absent")
    add("--val-size", type=int, default=128, metavar="N", help="held-out problems (default: 128)")
    add("--max-rows", type=int, metavar="N", help="at most this many problems, held-out ones included")
    add("--seed", type=int, default=0, help="order of the training problems (default: 0)")
    for option, effect in (
        ("--exclude", "drop its questions; may be repeated"),
        ("--eval", "--exclude, and write it as <name>.parquet"),
    ):
        add(option, action="append", default=[], metavar="NAME_OR_FILE", help=effect)
    add("--instruction", default=instruction, help="put after every question; '' for none")
    add("--force", action="store_true", help="replace files that are there")


def checked_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, numbers checked; exits with 2 for one that is not allowed."""
    arguments = parser.parse_args(argv)
    if arguments.val_size < 0:
        parser.error(f"--val-size {arguments.val_size}: expected an integer from 0")
    if arguments.max_rows is not None and arguments.max_rows <= arguments.val_size:
        parser.error(f"--max-rows {arguments.max_rows}: must be more than --val-size {arguments.val_size}")
    if arguments.workers < 1:
        parser.error(f"--workers {arguments.workers}: expected a positive integer")
    return arguments


def benchmarks_of(arguments: argparse.Namespace) -> list[str]:
    """What --exclude and --eval name, each once."""
    return list(dict.fromkeys([*arguments.exclude, *arguments.eval]))
