"""Named numbers of a scored trace, for conditions on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import fmean

from rredcot_plugin.report.traces import Trace

TRAITS = {
    "reward": "outcome R",
    "first": "value of the prompt, V̂_0",
    "last": "value before the answer segment",
    "peak": "greatest value after the prompt",
    "low": "least value after the prompt",
    "mean_value": "mean value after the prompt",
    "drop": "peak − reward",
    "fade": "peak − last",
    "min_delta": "least credit δ of a segment",
    "max_delta": "greatest credit δ of a segment",
    "answer_delta": "credit δ of the answer segment, reward − last",
    "answer_share": "|δ| of the answer segment / Σ |δ|, 0 where all are 0",
    "segments": "number of segments",
    "tokens": "number of response tokens",
    "step": "training step of the rollout",
    "group_size": "rollouts of the group in the file",
    "group_reward": "mean reward of the group",
    "group_peak": "greatest peak of the group",
}
"""Name -> what it is; values, rewards and credits in reward units; a value is of the whole trace, with what earlier segments
were paid. A trace without reasoning (one segment) has
its only value, that of the prompt, as peak, low and last; one without tokens has no values."""

Traits = dict[str, float]

Key = Hashable
"""What traces of one group have in common, and of others not."""


def traits_of(trace: Trace) -> Traits:
    """All numbers but those of the group; NaN where one is unknown."""
    values = trace.expected
    after = values[1:] or values
    deltas = [segment.credit for segment in trace.segments]
    last, peak = (values[-1], _extreme(max, after)) if values else (math.nan, math.nan)
    return {
        "reward": trace.reward,
        "first": values[0] if values else math.nan,
        "last": last,
        "peak": peak,
        "low": _extreme(min, after),
        "mean_value": fmean(after) if after else math.nan,
        "drop": peak - trace.reward,
        "fade": peak - last,
        "min_delta": _extreme(min, deltas),
        "max_delta": _extreme(max, deltas),
        "answer_delta": deltas[-1] if deltas else math.nan,
        "answer_share": _answer_share(deltas),
        "segments": float(len(values)),
        "tokens": float(sum(segment.tokens for segment in trace.segments)),
        "step": float(trace.step),
    }


def all_traits(traces: Sequence[Trace], keys: Sequence[Key]) -> list[Traits]:
    """The numbers of every trace, those of its group among them; in the order of the traces. ``keys`` names the group of each."""
    own = [traits_of(trace) for trace in traces]
    groups: dict[Key, list[Traits]] = {}
    for key, traits in zip(keys, own, strict=True):
        groups.setdefault(key, []).append(traits)
    shared = {
        key: {
            "group_size": float(len(members)),
            "group_reward": fmean(member["reward"] for member in members),
            "group_peak": _extreme(max, [member["peak"] for member in members]),
        }
        for key, members in groups.items()
    }
    return [{**traits, **shared[key]} for key, traits in zip(keys, own, strict=True)]


def group_of(trace: Trace) -> tuple[int, str]:
    """The group of a trace among those of one file; other files have groups of these names too."""
    return trace.step, trace.uid


def _extreme(choose: Callable[[list[float]], float], numbers: Iterable[float]) -> float:
    """Greatest or least number; NaN of none, or where one is NaN."""
    known = list(numbers)
    if not known or any(map(math.isnan, known)):
        return math.nan
    return choose(known)


def _answer_share(deltas: Sequence[float]) -> float:
    if not deltas:
        return math.nan
    total = sum(map(abs, deltas))
    return abs(deltas[-1]) / total if total else 0.0
