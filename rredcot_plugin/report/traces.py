"""Traces with their credit, read from the JSON lines that a training run leaves (`algorithm.rredcot.dump_dir`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ScoredSegment:
    """One step of reasoning. Numbers are NaN where the run had none (a reward that was not finite).

    ``value`` is V̂ of the state before it and ``credit`` is δ, how much it changed the expected reward; both
    in reward units. ``advantage`` is that of each of its tokens (the mean over them), NaN where the dump has none.
    ``observation`` is what stood before it that the model did not write, such as the answer of a tool; ``observed`` are the
    characters [from, to) of its own text that the model did not write; ``output`` is the number of the session's output that it
    is part of, 0 where there is only one. ``paid`` is what stayed on the segment of rewards on the way: ``value`` is of what
    comes after those of earlier segments.
    """

    text: str
    tokens: int
    value: float
    credit: float
    advantage: float
    observation: str = ""
    observed: tuple[tuple[int, int], ...] = ()
    output: int = 0
    paid: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """An answer that was put to the model at the boundaries of a trace.

    ``utility`` is what the answer is worth, the mean reward of the responses that gave it; ``kind`` says whose answer it
    is (``group``, ``ground_truth``, …). ``probabilities[i]`` is how probable the model found it at the state before
    segment i, NaN where it was not asked.
    """

    text: str
    kind: str
    utility: float
    probabilities: tuple[float, ...]


MOST_PROPOSALS = 16
"""Of a trace that are read."""

LARGEST = 1e15
"""Numbers of this size and above are not rewards: pictures and sums of them would be nonsense."""


@dataclass(frozen=True)
class Trace:
    """One response; Σ credit = reward − value of the prompt.

    A rollout that was never cut into segments has one, the whole response, of 0 tokens and unknown numbers;
    ``has_segments`` is False then.
    """

    step: int
    uid: str
    prompt: str
    ground_truth: str | None
    reward: float
    segments: tuple[ScoredSegment, ...]
    has_segments: bool = True
    proposals: tuple[Proposal, ...] = ()
    """What was probed, most probable first; dumps of earlier versions have none."""
    session: str | None = None
    """The host's name of it, where it has one."""
    output_prompts: Mapping[int, str] = field(default_factory=dict)
    """By number, the prompts of the outputs of a session whose context was rewritten between them."""

    @cached_property
    def turns(self) -> list[int]:
        """The turn of each segment, from 1: a turn begins after an observation, or with another output of the session."""
        found: list[int] = []
        for i, segment in enumerate(self.segments):
            begins = i > 0 and (bool(segment.observation) or segment.output != self.segments[i - 1].output)
            found.append(found[-1] + begins if found else 1)
        return found

    @cached_property
    def worst(self) -> int | None:
        """Index of the segment that lost the most reward; None if none lost any."""
        losing = [i for i, segment in enumerate(self.segments) if segment.credit < 0]
        return min(losing, key=lambda i: self.segments[i].credit) if losing else None

    @property
    def lowest_credit(self) -> float:
        """Credit of that segment in reward units, 0 if none lost any."""
        return 0.0 if self.worst is None else self.segments[self.worst].credit

    @cached_property
    def _paid_before(self) -> list[float]:
        return list(accumulate((segment.paid for segment in self.segments), initial=0.0))[:-1]

    @cached_property
    def expected(self) -> list[float]:
        """Expected reward of the trace at the state before each segment: V̂ and what earlier segments were paid."""
        return [own.value + paid for own, paid in zip(self.segments, self._paid_before, strict=True)]

    @cached_property
    def followed(self) -> list[float]:
        """Reward from each of these states on, which V̂ predicts: without what earlier segments were paid."""
        return [self.reward - paid for paid in self._paid_before]

    @cached_property
    def values(self) -> list[float]:
        """Expected reward at every boundary, from the prompt to the reward itself: one more than there are segments."""
        return [*self.expected, self.reward]


def read_dumps(paths: Iterable[Path] | Path) -> list[Trace]:
    """All traces of dump files, or of the ``*.jsonl`` files of a folder, in order of their steps.

    Raises:
        ValueError: no such file, no dump in the folder, a file without traces, or a broken line; the message
            names file and line.
    """
    if isinstance(paths, Path):
        files = sorted(paths.glob("*.jsonl")) if paths.is_dir() else [paths]
        if not files:
            raise ValueError(f"{paths}: no dumps here, expected files called <step>.jsonl")
    else:
        files = list(paths)
    found = [trace for file in files for trace in _read_file(file)]
    return sorted(found, key=lambda trace: trace.step)


def _read_file(path: Path) -> list[Trace]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    traces = list(_parsed(path))
    if not traces:
        raise ValueError(f"{path}, line 1: expected a trace, got an empty file")
    return traces


def _parsed(path: Path) -> Iterator[Trace]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield read_trace(json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error


def read_trace(record: Any) -> Trace:
    """The trace of one line of a dump.

    Raises:
        ValueError: a key is missing, or has a value of the wrong kind or size.
    """
    segments = _field(record, "segments", list)
    truth = record.get("ground_truth")
    return Trace(
        step=whole_number(record, "step"),
        uid=str(_field(record, "uid", object)),
        prompt=_field(record, "prompt", str),
        ground_truth=None if truth is None else str(truth),
        reward=number_or_nan(record, "reward"),
        segments=tuple(_segment(part, is_first=i == 0) for i, part in enumerate(segments)),
        proposals=_proposals(record, segments),
        session=str(record["session"]) if record.get("session") is not None else None,
        output_prompts={
            whole_number(own, "number"): _field(own, "prompt", str) for own in _listed(record, "outputs")
        },
    )


def _proposals(record: Any, segments: list[Any]) -> tuple[Proposal, ...]:
    """What was probed along a trace, if the dump says it."""
    if record.get("proposals") is None:
        return ()
    listed = _field(record, "proposals", list)
    by_state = []
    for part in segments:
        probabilities = _field(part, "probabilities", list)
        if len(probabilities) != len(listed):
            raise ValueError(
                f"probabilities: expected {len(listed)} numbers, one per proposal, got {len(probabilities)}"
            )
        by_state.append([number_or_nan({"probabilities": x}, "probabilities") for x in probabilities])
    return tuple(
        Proposal(
            text=_field(one, "text", str),
            kind=str(_field(one, "kind", str)),
            utility=number_or_nan(one, "utility"),
            probabilities=tuple(row[i] for row in by_state),
        )
        for i, one in enumerate(listed[:MOST_PROPOSALS])
    )


def _segment(part: Any, is_first: bool) -> ScoredSegment:
    value, reward = number_or_nan(part, "value"), number_or_nan(part, "reward")
    return ScoredSegment(
        text=_field(part, "text", str),
        tokens=whole_number(part, "tokens"),
        value=value,
        # the redistributed reward of the first segment holds the value of the prompt, which it did not earn
        credit=reward - value if is_first else reward,
        # dumps of early versions have none
        advantage=number_or_nan(part, "advantage") if "advantage" in part else math.nan,
        observation=_field(part, "observation", str) if "observation" in part else "",
        observed=tuple(_range(own) for own in _listed(part, "observed")),
        output=whole_number(part, "output") if "output" in part else 0,
        paid=number_or_nan(part, "paid") if "paid" in part else 0.0,
    )


def _listed(record: Any, key: str) -> list[Any]:
    """``record[key]``, a list; empty where there is none."""
    found: list[Any] = _field(record, key, list) if key in record else []
    return found


def _range(found: Any) -> tuple[int, int]:
    if not isinstance(found, list) or len(found) != 2:
        raise ValueError(f"observed: expected two numbers, got {found!r:.80}")
    begin, end = (whole_number({"observed": x}, "observed") for x in found)
    return begin, end


def _field(record: Any, key: str, kind: type) -> Any:
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, got {type(record).__name__}")
    if key not in record:
        raise ValueError(f"expected the key {key!r}, got {', '.join(sorted(record)) or 'none'}")
    if not isinstance(record[key], kind):
        raise ValueError(f"{key}: expected {kind.__name__}, got {record[key]!r:.80}")
    return record[key]


def whole_number(record: Any, key: str) -> int:
    """``record[key]``, an integer from 0; ValueError if it is none."""
    value = _field(record, key, int)
    if isinstance(value, bool) or not 0 <= value < LARGEST:
        raise ValueError(f"{key}: expected an integer from 0, got {value!r:.80}")
    return value


def number_or_nan(record: Any, key: str) -> float:
    """``record[key]``; NaN for null and for numbers that are not finite. ValueError if it is not a number."""
    value = _field(record, key, object)
    if value is None:  # JSON's stand-in for a number that is not finite
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}: expected a number or null, got {value!r:.80}")
    if abs(value) < LARGEST:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return math.nan
    raise ValueError(f"{key}: expected a number below {LARGEST:g} in size, got {value!r:.80}")
