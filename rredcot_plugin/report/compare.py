"""Several runs side by side: their numbers, the options in which they differ, and traces of the prompts they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.report.corpus import Corpus
from rredcot_plugin.report.options import read_options
from rredcot_plugin.report.read_corpus import (
    MAX_BYTES,
    MAX_TRACES,
    PER_PROMPT,
    Show,
    Steps,
    find_files,
    read_corpus,
    read_traces,
)
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.traces import Trace

MOST_RUNS = 4

Prompts = dict[bytes, dict[int, tuple[float, int]]]
"""Digest of a prompt -> step -> sum of known rewards, and how many."""


@dataclass(frozen=True)
class Run:
    """A run with its name; ``options`` are flat, empty where the files record none."""

    label: str
    corpus: Corpus
    options: Mapping[str, str]


@dataclass(frozen=True)
class Comparison:
    """``pairs[i][r]`` is the group of run r for the i-th shared prompt; those whose mean rewards differ most come first.

    ``shared`` counts the prompts that all runs have.
    """

    runs: tuple[Run, ...]
    pairs: tuple[tuple[Group, ...], ...]
    shared: int

    @property
    def differing(self) -> list[tuple[str, list[str]]]:
        """Options that are not the same in all runs that record any, by name."""
        known = [run.options for run in self.runs]
        if not all(known):
            return []
        names = sorted({name for options in known for name in options})
        rows = [(name, [options.get(name, "—") for options in known]) for name in names]
        return [(name, values) for name, values in rows if len(set(values)) > 1]


def compare_runs(
    runs: Mapping[str, Path],
    *,
    max_traces: int = MAX_TRACES,
    max_bytes: int = MAX_BYTES,
    seed: int = 0,
    steps: Steps = (),
    show: Show = lambda done, total: None,
) -> Comparison:
    """Read each run (label -> file or folder) twice: for its prompts and numbers, then for the traces to show.

    Prompts are the same if their texts are. They stand beside each other at a step that all runs have them at, else
    each at its last one.

    Raises:
        ValueError: as ``read_corpus``; or the runs have neither a step nor a prompt in common.
        OSError: a file that may not be opened.
    """
    found = [_prompts(path, steps) for path in runs.values()]
    shared = set.intersection(*(set(prompts) for prompts in found))
    chosen = _choose(found, shared, max(1, max_traces // (PER_PROMPT * len(runs))))
    read = []
    for i, (label, path) in enumerate(runs.items()):
        places = {(at[i], digest): place for place, (digest, at) in enumerate(chosen)}

        def order(trace: Trace, places: Mapping[tuple[int, bytes], int] = places) -> int | None:
            return places.get((trace.step, _digest(trace.prompt)))

        corpus = read_corpus(
            [path], max_traces=max_traces // len(runs), max_bytes=max_bytes // len(runs), seed=seed, steps=steps,
            show=show, order=order,
        )  # fmt: skip
        read.append(Run(label, corpus, read_options(path)))
    _check_shared(read, shared)
    return Comparison(tuple(read), tuple(_pairs(read, chosen)), len(shared))


def _prompts(path: Path, steps: Steps) -> Prompts:
    found: Prompts = {}
    for trace in read_traces(find_files([path]), steps):
        at = found.setdefault(_digest(trace.prompt), {})
        total, count = at.get(trace.step, (0.0, 0))
        is_known = trace.reward == trace.reward
        at[trace.step] = (total + (trace.reward if is_known else 0.0), count + is_known)
    return found


def _digest(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _choose(found: Sequence[Prompts], shared: set[bytes], most: int) -> list[tuple[bytes, tuple[int, ...]]]:
    """Shared prompts with the step of each run, the greatest difference of mean rewards first."""
    rows = []
    for digest in shared:
        both = set.intersection(*(set(prompts[digest]) for prompts in found))
        at = tuple(max(both) if both else max(prompts[digest]) for prompts in found)
        means = [total / max(1, count) for total, count in (p[digest][s] for p, s in zip(found, at, strict=True))]
        rows.append((min(means) - max(means), digest, at))
    return [(digest, at) for _, digest, at in sorted(rows)[:most]]


def _pairs(runs: Sequence[Run], chosen: Sequence[tuple[bytes, tuple[int, ...]]]) -> Iterator[tuple[Group, ...]]:
    """The groups of each chosen prompt; without those that did not fit in one of the runs."""
    by_key = [{(group.step, _digest(group.prompt)): group for group in run.corpus.groups} for run in runs]
    for digest, at in chosen:
        groups = [known.get((step, digest)) for known, step in zip(by_key, at, strict=True)]
        found = tuple(group for group in groups if group is not None)
        if len(found) == len(runs):
            yield found


def _check_shared(runs: Sequence[Run], shared: set[bytes]) -> None:
    steps = [{step.step for step in run.corpus.steps} for run in runs]
    if shared or frozenset.intersection(*map(frozenset, steps)):
        return
    spans = "; ".join(f"{run.label}: steps {min(s)} to {max(s)}" for run, s in zip(runs, steps, strict=True))
    raise ValueError(
        f"compare: expected runs with a step or a prompt in common, got neither ({spans}); use runs on the same data, "
        "or one report each"
    )
