"""Which traces a report shows of files that do not fit into memory: places are kept, not texts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from rredcot_plugin.report.select import pick
from rredcot_plugin.report.traces import Trace

RANDOM_SHARE = 0.25
"""Of the traces and bytes, at most so much goes to groups taken at random."""

FEWEST, KEPT = 4, 8
"""Traces shown of a group: so many at least if it has them and they fit, and so many at most if there is room."""


class Place(NamedTuple):
    """A line of file number ``file``."""

    file: int
    offset: int
    line: int


class Entry(NamedTuple):
    """What is remembered of a trace; ``size`` in bytes of its line, ``text`` tells texts apart."""

    lowest_credit: float
    reward: float
    place: Place
    size: int
    text: int


@dataclass(slots=True)
class Candidate:
    """A group: its lowest credit, the range of its rewards, and the places of the traces that may be shown; ``order`` is the
    place that was asked for."""

    step: int
    uid: str
    priority: bytes
    order: int = 0
    size: int = 0
    lowest_credit: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        self.size += 1
        self.lowest_credit = min(self.lowest_credit, entry.lowest_credit)
        if not math.isnan(entry.reward):
            self.least, self.most = min(self.least, entry.reward), max(self.most, entry.reward)
        if any(known.text == entry.text for known in self.entries):
            return  # equal texts are shown once
        self.entries.append(entry)
        if len(self.entries) > KEPT + 1:
            self.entries = pick(self.entries, KEPT)

    @property
    def rank(self) -> tuple[int, float, bool, bytes]:
        """As asked for, then worst segment first; without credit, groups with right and wrong traces first."""
        return self.order, self.lowest_credit, not self.least < self.most, self.priority


class Choice:
    """Sees every trace once and keeps the places of a bounded number of groups.

    A group is the traces of one step and uid in one file, wherever they stand in it. Groups are drawn at random by
    the smallest keyed hashes of their names: each group is as likely as any other, and no group need be known
    before its first trace. Memory: some 200 bytes per trace of the file that is being read, then a bounded number.
    With ``most``, at most so many traces of each group, and none is drawn at random: the order is asked for.
    """

    def __init__(self, max_traces: int, max_bytes: int, seed: int, most: int | None = None) -> None:
        self.num_groups = 0
        self._most = most
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._seed = seed
        self._here: dict[tuple[int, str], Candidate] = {}
        self._worst: list[Candidate] = []
        self._random: list[Candidate] = []

    def add(self, trace: Trace, place: Place, size: int, order: int = 0) -> None:
        key = (trace.step, trace.uid)
        candidate = self._here.get(key)
        if candidate is None:
            name = f"{self._seed} {place.file} {trace.step} {trace.uid}".encode("utf-8", "surrogatepass")
            candidate = Candidate(*key, hashlib.blake2b(name, digest_size=8).digest(), order)
            self._here[key] = candidate
        text = hash(tuple(segment.text for segment in trace.segments))
        candidate.add(Entry(trace.lowest_credit, trace.reward, place, size, text))

    def end_file(self) -> None:
        """The groups of a file are complete; keep as many as could be shown."""
        found = list(self._here.values())
        self.num_groups += len(found)
        self._worst = sorted([*self._worst, *found], key=lambda group: group.rank)[: self._max_traces]
        self._random = sorted([*self._random, *found], key=lambda group: group.priority)[: self._max_traces]
        self._here = {}

    def chosen(self) -> list[tuple[Candidate, list[Entry]]]:
        """Groups with the traces to show of each, worst first, within both bounds; a trace that is too long for
        what is left gives way to the next."""
        most = self._most or min(KEPT, max(FEWEST, self._max_traces // max(1, self.num_groups)))
        passes = [(self._random, RANDOM_SHARE)] if self._most is None else []
        taken: dict[int, tuple[Candidate, list[Entry]]] = {}
        traces, size = 0, 0
        for groups, share in [*passes, (self._worst, 1.0)]:
            for group in groups:
                left = int(share * self._max_traces) - traces, int(share * self._max_bytes) - size
                entries = _fitting(pick(group.entries, most), *left)
                if entries and id(group) not in taken:
                    taken[id(group)] = group, entries
                    traces, size = traces + len(entries), size + sum(entry.size for entry in entries)
        return sorted(taken.values(), key=lambda pair: pair[0].rank)


def _fitting(entries: list[Entry], traces: int, size: int) -> list[Entry]:
    """Traces without those in the middle, until they fit; the worst one goes last."""
    entries = list(entries)
    while entries and (len(entries) > traces or sum(entry.size for entry in entries) > size):
        entries.pop(-2 if len(entries) > 2 else -1)
    return entries
