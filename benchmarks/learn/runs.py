"""One training run: what identifies it, and its file, which is whole or not there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lab.models
from lab.devices import CPU, FLOAT32
from lab.lm.tasks import LM
from lab.models import CleanTraining
from lab.store import read_checked, write_checked
from lab.tasks import DEMO, FAMILIES

from learn.systems import System

LEAN, VERL = "lean", "verl"
DONE, FAILED = "done", "failed"
PHASES = ("rollout", "log_prob", "credit", "update")
"""Of a training step; their seconds are kept one by one."""

TRAIN_SEEDS = 1000
"""Added to a run's seed, so that its questions are not those that the reasoner was trained on."""

Record = dict[str, Any]
AGAIN = "it is run again"


@dataclass(frozen=True)
class Sizes:
    """``steps`` of ``prompts`` × ``group`` rollouts; every ``eval_every`` steps ``eval_questions`` held-out questions
    are answered ``eval_samples`` times, after the last step ``final_samples`` times. ``clean_steps`` of training
    made the model of the families with own mistakes. Over ``warmup`` steps the rate rises from 0, as verl counts them:
    without, Adam's first steps, all of the same size, do more harm than the rewards do good."""

    steps: int = 30
    prompts: int = 8
    group: int = 8
    eval_every: int = 3
    eval_questions: int = 64
    eval_samples: int = 2
    final_samples: int = 6
    clean_steps: int = CleanTraining.steps
    warmup: int = 4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ValueError(f"{name}={value}: expected a positive integer")
        if self.prompts < 2:
            raise ValueError(f"prompts={self.prompts}: at least 2, credit is fitted on other groups")


@dataclass(frozen=True)
class Run:
    """A system with a learning rate and a seed, on a family; ``greedy`` validates without chance too."""

    family: str
    system: System
    rate: float
    seed: int
    sizes: Sizes
    trainer: str = LEAN
    device: str = CPU
    matmul: str = FLOAT32
    greedy: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON."""
        sizes = asdict(self.sizes)
        if FAMILIES[self.family].model in (DEMO, LM):
            del sizes["clean_steps"]
        return {
            "trainer": self.trainer,
            "family": self.family,
            "system": self.system.name,
            **self.system.identity,
            "rate": self.rate,
            "seed": self.seed,
            "sizes": sizes,
            "model": model_digest(FAMILIES[self.family].model, self.sizes.clean_steps),
            **({} if self.device == CPU else {"device": self.device}),
            **({} if self.matmul == FLOAT32 else {"matmul": self.matmul}),
            **({"greedy": True} if self.greedy else {}),
        }

    @property
    def name(self) -> str:
        return f"{self.trainer} {self.family} {self.system.name} rate {self.rate:g} seed {self.seed}"

    @property
    def file(self) -> str:
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.trainer}-{self.family}-{self.system.name}-{self.rate:g}-{self.seed}-{digest}.json"


@cache
def model_digest(model: str, clean_steps: int) -> str:
    return lab.models.model_digest(model, CleanTraining(steps=clean_steps))


def save(folder: Path, run: Run, record: Record) -> None:
    """Write a run's file: the digest of the rest on the first line, so that a broken file is seen."""
    folder.mkdir(parents=True, exist_ok=True)
    write_checked(folder / run.file, json.dumps({"identity": run.identity, **record}).encode())


def load(folder: Path, run: Run) -> Record | None:
    """A run's record; None where there is none, or where its file is corrupted, which is said."""
    body = read_checked(folder / run.file, AGAIN)
    return None if body is None else json.loads(body)


def load_all(folder: Path, runs: Iterable[Run]) -> dict[Run, Record]:
    """The records that the folder has of these runs."""
    found = {run: load(folder, run) for run in runs}
    return {run: record for run, record in found.items() if record is not None}


def merge(folder: Path, others: Iterable[Path]) -> int:
    """Take over the runs of other folders, or of result files of this benchmark, that this folder does not have; how
    many.

    Raises:
        ValueError: a folder or file that is not there, or a file that is not a result of this benchmark.
    """
    return sum(_take(folder, name, body) for other in others for name, body in _runs_of(other))


def take_rows(folder: Path, rows: Iterable[Record]) -> None:
    """Write the rows of a result file as files of runs, where there are none yet."""
    for name, body in _files_of(row for row in rows if not (folder / row["file"]).exists()):
        write_checked(folder / name, body)


def _take(folder: Path, name: str, body: bytes | None) -> bool:
    here = folder / name
    if body is None or here.exists():
        return False
    write_checked(here, body)
    return True


def _runs_of(other: Path) -> Iterator[tuple[str, bytes | None]]:
    """Names and contents of the files of a folder, or of the rows of a result file; no content where it is broken."""
    if other.is_dir():
        yield from ((path.name, read_checked(path, AGAIN)) for path in sorted(other.glob("*.json")))
        return
    yield from _files_of(rows_of(other))


def _files_of(rows: Iterable[Record]) -> Iterator[tuple[str, bytes]]:
    for row in rows:
        yield row["file"], json.dumps(with_numbers({k: v for k, v in row.items() if k != "file"})).encode()


def rows_of(result: Path, *, tuning: bool = True) -> list[Record]:
    """The runs of a result file, each with the name of its own file; without ``tuning`` those that only chose the rate are left out.

    Raises:
        ValueError: no such file, or no result of this benchmark.
    """
    try:
        record = json.loads(result.read_bytes())
        rows = record["raw"]
        if not tuning:
            seeds = record.get("settings", {}).get("tuning_seeds", [])
            rows = [row for row in rows if row["identity"]["seed"] not in seeds]
        for row in rows:
            with_numbers(row)  # a damaged column is found here, before any run is taken
        return [{**row, "file": Path(row["file"]).name} for row in rows]
    except FileNotFoundError:
        raise ValueError(f"{result}: no such folder or file") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{result}: not a result of this benchmark ({error!r})") from error


def with_texts(record: Record) -> Record:
    """A record for a result file, columns of numbers as texts: a JSON list of numbers would take a line each."""
    return _columns(record, lambda numbers: " ".join(f"{x:.4g}" for x in numbers))


def with_numbers(record: Record) -> Record:
    """A record from a result file, to four digits what ``with_texts`` was given."""
    return _columns(record, lambda text: [float(x) for x in text.split()])


def _columns(record: Record, change: Callable[[Any], Any]) -> Record:
    parts = [part for part in ("steps", "evals") if part in record]
    return {**record, **{part: {name: change(column) for name, column in record[part].items()} for part in parts}}
