"""Write the credit of a step as JSON lines, one trace a line, for reports and for reading."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rredcot_plugin.adapter.trace_record import CreditedBatch, trace_record
from rredcot_plugin.adapter.whole_file import whole_file
from rredcot_plugin.config import RRedCoTConfig

logger = logging.getLogger(__name__)

MAX_ROWS = 256
"""Traces written a step."""

MEGABYTE = 1_000_000

ABOUT = "run.json"
"""Beside the dumps: what the run is made of, so that reports can say in what two runs differ."""


class Dumper:
    """The dumps of one run: ``<step>.jsonl``, and ``<step>.<i>.jsonl`` for mini-batch i > 0 of a step.

    A step has at most ``MAX_ROWS`` traces, shared by its ``mini_batches``. Nothing is written once the ``*.jsonl``
    files of the folder, those of earlier runs included, have ``max_mb`` megabytes (10⁶ bytes) together; the last file
    may go over. A folder that cannot be written is not a reason to stop a training run: the ``OSError`` is logged, the
    first time, and the next step tries again. ``about`` goes into ``run.json`` beside the first dump.
    """

    def __init__(
        self, folder: Path, max_mb: int, mini_batches: int = 1, about: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self._about = about
        self.max_mb = max_mb
        self.max_rows = max(1, MAX_ROWS // mini_batches)
        self._warned: set[str] = set()

    @classmethod
    def of_run(cls, settings: RRedCoTConfig, version: str, mini_batches: int = 1) -> Dumper | None:
        """As the options ask for, by this ``version`` of rredcot; None where they name no ``dump_dir``."""
        if not settings.dump_dir:
            return None
        about = {"version": version, "options": dataclasses.asdict(settings)}
        return cls(Path(settings.dump_dir), settings.dump_max_mb, mini_batches, about)

    def write(self, step: int, mini_batch: int, batch: CreditedBatch) -> None:
        """Up to ``max_rows`` traces of a batch, with what was probed along them."""
        name = f"{step}.{mini_batch}.jsonl" if mini_batch else f"{step}.jsonl"
        chosen = choose_rows(batch.rollouts.group_ids, self.max_rows)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._is_full():
                return
            if self._about is not None:
                _write_whole(self.folder / ABOUT, [json.dumps(self._about, indent=1, default=str) + "\n"])
                self._about = None
            records = (trace_record(step, row, batch) for row in chosen)
            lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            _write_whole(self.folder / name, lines)
        except OSError as error:
            self._warn_once(
                "error",
                f"no credit written to dump_dir={self.folder}: {error}. Training goes on, and every dump tries again",
            )

    def _is_full(self) -> bool:
        size = sum(path.stat().st_size for path in self.folder.glob("*.jsonl"))
        if size < self.max_mb * MEGABYTE:
            return False
        self._warn_once(
            "full",
            f"dump_dir={self.folder} has {size / MEGABYTE:.1f} MB of *.jsonl, which reaches "
            f"dump_max_mb={self.max_mb}: no more credit is written. Raise the key, or move files away",
        )
        return True

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("rredcot: %s", message)


def choose_rows(group_ids: Sequence[Hashable], most: int) -> list[int]:
    """At most ``most`` rows, in order: whole groups, those that come first; a part of one only where none fits.

    >>> choose_rows(["a", "b", "a", "b", "b", "c"], 4)
    [0, 2, 5]
    >>> choose_rows(["a", "a", "a"], 2)
    [0, 1]
    """
    groups: dict[Hashable, list[int]] = {}
    for row, group in enumerate(group_ids):
        groups.setdefault(group, []).append(row)
    chosen: list[int] = []
    for members in groups.values():
        if len(chosen) + len(members) <= most:
            chosen += members
    return sorted(chosen) or next(iter(groups.values()), [])[:most]


def _write_whole(path: Path, lines: Iterable[str]) -> None:
    # half a surrogate pair, which UTF-8 cannot hold, becomes JSON's own \uXXXX
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(lines)
