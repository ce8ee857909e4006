"""The first rows of the recipe's data, or of its sample where the data are not on this machine."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.offline.json_lines import UNREADABLE, numbered_objects

ROWS = 32
"""Rows of a file that are looked at and trained on."""

REWARD = "reward_model"
"""The column in which verl looks for the ground truth."""

JSON = (".json", ".jsonl")
SUFFIXES = (".parquet", *JSON)
"""Files that verl reads, and OpenRLHF among others."""

SAMPLE, PREPARE = "sample.jsonl", "prepare_data.py"
SAMPLE_HELD_OUT = 4
PREPARE_SECONDS = 300


@dataclass(frozen=True)
class Data:
    """Rows as the recipe's files have them; ``note`` says where they come from."""

    train: pa.Table
    val: pa.Table
    note: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.train.to_pylist()


def gather(
    config: Any,
    script: Path,
    scratch: Path,
    environment: Mapping[str, str],
    sample_folder: Path | None = None,
    columns: Sequence[str] | None = None,
) -> Data:
    """The first rows of ``data.train_files`` and ``data.val_files``, checked for ``columns``, by default those that verl reads.

    Where no training file is here, the recipe's ``prepare_data.py`` is run on the ``sample.jsonl`` beside the script, or in
    ``sample_folder``.

    Raises:
        RecipeError: files that are not there and no sample either, a sample that cannot be prepared, a file that
            cannot be read, a missing column.
    """
    train, val = (_paths(key, getattr(config.data, key)) for key in ("train_files", "val_files"))
    if not any(path.exists() for path in train):
        folder = sample_folder or script.resolve().parent
        if not (folder / SAMPLE).is_file() or not (folder / PREPARE).is_file():
            raise RecipeError(
                f"data.train_files={train[0]}: no such file; prepare the data (DATA_DIR, TRAIN_FILES), or put "
                f"{SAMPLE} and {PREPARE} beside {script.name}"
            )
        note = f"{SAMPLE} of the recipe, because {train[0]} is not here"
        train, val = _prepare_sample(folder, scratch, environment)
    else:
        note = ", ".join(path.name for path in train)
    wanted = (config.data.prompt_key, config.data.reward_fn_key, REWARD) if columns is None else columns
    rows, held_out = _first_rows("train_files", train, wanted), _first_rows("val_files", val, wanted)
    return Data(rows, held_out, f"{rows.num_rows} rows of {note}")


def _paths(key: str, files: Any) -> list[Path]:
    names = [files] if isinstance(files, str) else list(files or [])
    if not names:
        raise RecipeError(f"data.{key}={files}: expected at least one file")
    return [Path(os.path.expanduser(str(name))) for name in names]


def _prepare_sample(folder: Path, scratch: Path, environment: Mapping[str, str]) -> tuple[list[Path], list[Path]]:
    out = scratch / "sample"
    command = [sys.executable, str(folder / PREPARE), "--source", str(folder / SAMPLE), "--out", str(out)]
    command += ["--val-size", str(SAMPLE_HELD_OUT)]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, errors="replace", timeout=PREPARE_SECONDS
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RecipeError(
            f"{folder / PREPARE} on {SAMPLE}: exit code {done.returncode}: {said[-1] if said else ''}"
        )
    return [out / "train.parquet"], [out / "val.parquet"]


def _first_rows(key: str, paths: Sequence[Path], wanted: Sequence[str]) -> pa.Table:
    """Rows of the first file, after a look at the columns of all."""
    tables = []
    for path in paths:
        if not path.exists():
            raise RecipeError(f"data.{key}={path}: no such file")
        tables.append(_read(key, path))
        if not tables[0].num_rows:
            raise RecipeError(f"data.{key}={paths[0]}: expected rows, got an empty file")
        _check_columns(key, path, tables[-1].schema, wanted)
    return tables[0]


def _read(key: str, path: Path) -> pa.Table:
    """The first rows."""
    if path.suffix not in SUFFIXES:
        raise RecipeError(f"data.{key}={path}: expected a file whose name ends in {', '.join(SUFFIXES)}")
    try:
        if path.suffix in JSON:
            return _read_json(path)
        file = pq.ParquetFile(path)
        return pa.Table.from_batches(itertools.islice(file.iter_batches(ROWS), 1), file.schema_arrow)
    except (pa.ArrowException, OSError, *UNREADABLE) as error:
        kind = "JSON" if path.suffix in JSON else "parquet"
        raise RecipeError(f"data.{key}={path}: no {kind} file: {error}") from error


def _read_json(path: Path) -> pa.Table:
    """One row per line, or a list of them."""
    rows = [json.loads(line) for _, line in itertools.islice(numbered_objects(path), ROWS)]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected one mapping per row")
    found = pa.array(rows) if rows else pa.array([], pa.struct([]))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(found)])


def _check_columns(key: str, path: Path, schema: pa.Schema, wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise RecipeError(
            f"data.{key}={path}: missing {_quoted(missing)}; found {_quoted(schema.names)} (verl needs {_quoted(wanted)})"
        )
    if REWARD not in wanted:
        return
    prompt = schema.field(wanted[0]).type
    if pa.types.is_string(prompt) or pa.types.is_large_string(prompt):
        raise RecipeError(
            f"data.{key}={path}: column {wanted[0]!r} holds text, of which verl's chat template makes empty messages; expected a "
            'list of messages such as [{"role": "user", "content": "…"}]'
        )
    reward_model = schema.field(REWARD).type
    parts = [field.name for field in reward_model] if pa.types.is_struct(reward_model) else []
    if "ground_truth" not in parts:
        raise RecipeError(f"data.{key}={path}: column {REWARD!r} has no 'ground_truth'; found {_quoted(parts)}")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def write(table: pa.Table, path: Path) -> Path:
    """The rows as a parquet file."""
    pq.write_table(table, path)
    return path
