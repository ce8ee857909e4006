"""Which traces a reader should see first: those where one step visibly lost the reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rredcot_plugin.report.traces import Trace


class Ranked(Protocol):
    """What the choice among the traces of a prompt looks at."""

    @property
    def lowest_credit(self) -> float: ...
    @property
    def reward(self) -> float: ...


R = TypeVar("R", bound=Ranked)


@dataclass(frozen=True)
class Group:
    """Some traces of one prompt at one step, the one with the worst segment first."""

    step: int
    prompt: str
    ground_truth: str | None
    traces: tuple[Trace, ...]
    size: int
    """Traces that the dump has of this prompt, shown or not."""

    @property
    def lowest_credit(self) -> float:
        return min(trace.lowest_credit for trace in self.traces)


def group_traces(traces: Sequence[Trace], most_groups: int = 8, most_traces: int = 3) -> list[Group]:
    """Prompts whose traces differ in reward first, then by their worst segment; at most so many of each.

    Of each prompt the traces with the worst segments are shown, and where there is one, a best-rewarded
    trace beside them, so that right and wrong stand together. Traces of equal text are shown once.
    """
    by_prompt: dict[tuple[int, str], list[Trace]] = {}
    for trace in traces:
        by_prompt.setdefault((trace.step, trace.uid), []).append(trace)
    groups = [_group(members, most_traces) for members in by_prompt.values()]
    groups.sort(key=lambda group: (not _is_mixed(group), group.lowest_credit))
    return groups[:most_groups]


def worst_segments(traces: Sequence[Trace], most: int) -> list[tuple[Trace, int]]:
    """The segments with the lowest credit, one a trace, worst first: (trace, index)."""
    losing = [(trace, trace.worst) for trace in traces if trace.worst is not None]
    losing.sort(key=lambda found: found[0].lowest_credit)
    return [(trace, index) for trace, index in losing[:most] if index is not None]


def _group(members: list[Trace], most: int) -> Group:
    unique = {tuple(segment.text for segment in trace.segments): trace for trace in reversed(members)}
    shown = pick(list(unique.values()), most)
    first = members[0]
    return Group(first.step, first.prompt, first.ground_truth, tuple(shown), len(members))


def pick(members: Sequence[R], most: int) -> list[R]:
    """At most so many: those of the lowest credit, worst first, and where there is one, a best-rewarded one last."""
    ranked = sorted(members, key=lambda trace: trace.lowest_credit)
    shown = ranked[:most]
    best = max(ranked, key=lambda trace: (_known(trace.reward), trace.lowest_credit))
    if most > 1 and best not in shown:
        shown[-1] = best
    return sorted(shown, key=lambda trace: (trace is best, trace.lowest_credit))


def _is_mixed(group: Group) -> bool:
    return len({_known(trace.reward) for trace in group.traces}) > 1


def _known(reward: float) -> float:
    """A reward that was not finite ranks below all others."""
    return -math.inf if math.isnan(reward) else reward
