"""Dumps, scored rollouts and verl's own rollouts of any size: one pass for the numbers, then the chosen lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rredcot_plugin.offline.input_columns import NAMES, names_of
from rredcot_plugin.offline.json_lines import UNREADABLE, array_of_objects, json_object, reason_of, why_not_read
from rredcot_plugin.offline.out_file import SCORED
from rredcot_plugin.offline.rollout_record import found_keys, read_rollout
from rredcot_plugin.report.choice import Candidate, Choice, Entry, Place
from rredcot_plugin.report.corpus import Corpus, Problem
from rredcot_plugin.report.options import CALIBRATE, may_be_fitted, read_options
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.statistics import Statistics
from rredcot_plugin.report.traces import Trace, read_trace

MAX_TRACES, MAX_BYTES = 200, 4_000_000
"""What a page holds that a browser opens at once."""

MAX_LINE = 64 * 2**20
"""Bytes of a line; a longer one is left out instead of being held in memory."""

PROBLEMS_KEPT = 20
LONGEST_REASON = 300
SHOW_EVERY = 2**20

PER_PROMPT = 3
"""Traces shown of a group whose place was asked for."""

Order = Callable[[Trace], int | None]
"""The place of a trace's group among those to show; None if it is none of them."""

Show = Callable[[int, int], None]
"""Called with the bytes read so far and all bytes there are."""

Steps = Sequence[tuple[int, int]]
"""Ranges of training steps, both ends in; none means all steps."""


class File(NamedTuple):
    """``is_named``: the user named it, so it must be readable; files of a folder may be broken."""

    path: Path
    is_named: bool


@dataclass(frozen=True)
class Line:
    """``content`` is None where it is longer than ``MAX_LINE``."""

    place: Place
    content: bytes | None


def read_corpus(
    paths: Iterable[Path],
    *,
    max_traces: int = MAX_TRACES,
    max_bytes: int = MAX_BYTES,
    seed: int = 0,
    steps: Steps = (),
    show: Show = lambda done, total: None,
    order: Order | None = None,
) -> Corpus:
    """Numbers over all traces of files, or of the ``*.jsonl`` of folders, and the traces to show.

    Shown are at most ``max_traces`` traces, of lines of ``max_bytes`` together: the groups with the worst segments,
    and for up to a quarter of that groups drawn at random with ``seed``. With an ``order``, it is the groups that have a
    place in it, by their places, ``PER_PROMPT`` traces of each. Broken lines are left out and told.

    Raises:
        ValueError: no such file, a folder without files, a file of which no line can be read (in a folder: none of
            its files), or nothing of the wanted ``steps``.
        OSError: a file that may not be opened.
    """
    paths = list(paths)
    choice = Choice(max_traces, max_bytes, seed, None if order is None else PER_PROMPT)
    reading = _Reading(find_files(paths), choice, steps, order or (lambda trace: 0))
    reading.read(show)
    groups = [reading.group(candidate, entries) for candidate, entries in reading.choice.chosen()]
    numbers, options = reading.statistics, list(map(read_options, paths))
    return Corpus(
        sources=tuple(map(str, paths)),
        groups=tuple(group for group in groups if group is not None),
        num_traces=numbers.traces,
        num_groups=reading.choice.num_groups,
        has_credit=numbers.has_credit,
        steps=numbers.steps(),
        histograms=numbers.histograms(),
        calibration=numbers.calibration(),
        reward_range=numbers.reward_range,
        problems=tuple(reading.problems),
        num_problems=reading.num_problems,
        bias=numbers.bias(),
        calibrated=any(own.get(CALIBRATE) != "none" for own in options),
        fitted=any(map(may_be_fitted, options)),
    )


def find_files(paths: Iterable[Path]) -> list[File]:
    """The files of all paths, each once, and of a folder not those that stand there scored too; ValueError for a path
    without any."""
    found: dict[Path, File] = {}
    for path in paths:
        inside = _files_in(path) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: no rollouts here, expected files called *.jsonl")
        for file in inside:
            if not file.is_file():
                why = why_not_read(file) if file.exists() else "no such file or folder"
                raise ValueError(f"{file}: {why}")
            found.setdefault(file.resolve(), File(file, not path.is_dir()))
    if not found:
        raise ValueError("paths: expected at least one file or folder of rollouts, got none")
    return list(found.values())


def _files_in(folder: Path) -> list[Path]:
    """What rredcot score read and wrote side by side holds the same traces."""
    found = set(folder.glob("*.jsonl"))
    return sorted(file for file in found if file.with_suffix(SCORED) not in found)


def read_line(record: Mapping[str, Any]) -> Trace:
    """A trace of a dump or of `rredcot score`, or a rollout without credit; ValueError if it is neither."""
    if "segments" in record:
        return read_trace(record)
    if not record.keys() & set(NAMES["response"]):
        raise ValueError(
            f"missing columns: 'segments' (a dump, or from rredcot score) or {names_of('response')} (rollouts, with "
            f"{names_of('prompt')} and {names_of('reward')}): rename yours; found: {found_keys(record)}"
        )
    return read_rollout(record)


def is_in(step: int, steps: Steps) -> bool:
    """Whether a step lies in one of the ranges, or there are none."""
    return not steps or any(low <= step <= high for low, high in steps)


def read_traces(files: Sequence[File], steps: Steps = ()) -> Iterator[Trace]:
    """All traces of files one by one, without lines that cannot be read."""
    for index, file in enumerate(files):
        for line in _lines(file.path, index):
            try:
                trace = read_line(json_object(line.content or b""))
            except UNREADABLE:
                continue
            if is_in(trace.step, steps):
                yield trace


class _Reading:
    """One pass over the files, and what came of it."""

    def __init__(self, files: Sequence[File], choice: Choice, steps: Steps, order: Order) -> None:
        self.files = files
        self.choice = choice
        self.statistics = Statistics()
        self.problems: list[Problem] = []
        self.num_problems = 0
        self._steps = steps
        self._order = order

    def read(self, show: Show) -> None:
        total = sum(file.path.stat().st_size for file in self.files)
        done, readable = 0, 0
        for index, file in enumerate(self.files):
            before = self.num_problems
            lines = self._read_file(index, partial(_shift, show, done, total))
            readable += lines
            if not lines and (file.is_named or len(self.files) == 1):
                raise ValueError(self._nothing_in(file, before))
            if not lines and self.num_problems == before:
                self._tell(file.path, 1, "the file is empty")
            done += file.path.stat().st_size
            show(done, max(total, done))
        if not readable:
            first = self.problems[0]
            raise ValueError(
                f"{first.path}, line {first.line}: {first.why} (no line of {len(self.files)} files can be read)"
            )
        if not self.statistics.traces:
            raise ValueError("steps: expected steps that the files have, got none of their traces")

    def group(self, candidate: Candidate, entries: Sequence[Entry]) -> Group | None:
        """The chosen lines, read once more; one that has changed since is told and left out."""
        traces = []
        for entry in entries:
            path = self.files[entry.place.file].path
            with path.open("rb") as file:
                file.seek(entry.place.offset)
                content = file.readline(MAX_LINE)
            try:
                trace = read_line(json_object(content))
            except UNREADABLE:
                trace = None
            if trace is not None and (trace.step, trace.uid) == (candidate.step, candidate.uid):
                traces.append(trace)
            else:
                self._tell(path, entry.place.line, "changed while the report was made")
        if not traces:
            return None
        first = traces[0]
        return Group(first.step, first.prompt, first.ground_truth, tuple(traces), candidate.size)

    def _read_file(self, index: int, show: Callable[[int], None]) -> int:
        """Count the traces of a file in; how many of its lines could be read."""
        readable, shown = 0, 0
        for line in _lines(self.files[index].path, index):
            if line.place.offset - shown >= SHOW_EVERY:
                shown = line.place.offset
                show(shown)
            if line.content is not None and not line.content.strip():
                continue
            try:
                if line.content is None:
                    raise ValueError(f"longer than {MAX_LINE} bytes")
                trace = read_line(json_object(line.content))
            except UNREADABLE as error:
                self._tell(self.files[index].path, line.place.line, reason_of(error))
                continue
            readable += 1
            if is_in(trace.step, self._steps):
                self.statistics.add(trace)
                place = self._order(trace)
                if place is not None:
                    self.choice.add(trace, line.place, len(line.content), place)
        self.choice.end_file()
        return readable

    def _tell(self, path: Path, line: int, why: str) -> None:
        self.num_problems += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(str(path), line, why[:LONGEST_REASON]))

    def _nothing_in(self, file: File, problems_before: int) -> str:
        if array_of_objects(file.path):
            ending = ".lines.jsonl" if file.path.suffix == ".jsonl" else ".jsonl"  # never the file that jq reads
            names = [shlex.quote(str(path)) for path in (file.path, file.path.with_suffix(ending))]
            return (
                f"{file.path}: expected JSON lines, got a JSON array; write one object per line: "
                f"jq -c '.[]' {' > '.join(names)}"
            )
        bad = self.num_problems - problems_before
        first = next((problem for problem in self.problems if problem.path == str(file.path)), None)
        if first is not None:
            return f"{file.path}, line {first.line}: {first.why} (no line of {bad} can be read)"
        found = f"{bad} lines that cannot be read" if bad else "an empty file"
        return f"{file.path}, line 1: expected JSON lines, got {found}"


def _shift(show: Show, before: int, total: int, offset: int) -> None:
    """Progress inside a file as progress in all of them."""
    show(before + offset, total)


def _lines(path: Path, index: int) -> Iterator[Line]:
    with path.open("rb") as file:
        offset, number = 0, 0
        while content := file.readline(MAX_LINE):
            number += 1
            place = Place(index, offset, number)
            offset += len(content)
            is_cut = len(content) == MAX_LINE and not content.endswith(b"\n")
            yield Line(place, None if is_cut else content)
            while is_cut and (more := file.readline(MAX_LINE)):
                offset += len(more)
                is_cut = not more.endswith(b"\n")
