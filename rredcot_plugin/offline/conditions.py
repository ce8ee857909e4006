"""Conditions on the numbers of a trace, such as `peak > 0.7 and reward == 0`.

Parsed into a tree, of which only comparisons, `and`, `or`, `not`, arithmetic, numbers and the names of
`traits.TRAITS` are understood; nothing is ever run as Python.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rredcot_plugin.offline.trace_stats import TRAITS, Key, Traits, all_traits
from rredcot_plugin.registry import nearest
from rredcot_plugin.report.traces import Trace

LONGEST = 500
"""Characters of a condition."""

TRACE, GROUP, ANY = "trace", "group", "any"
BY = (TRACE, GROUP, ANY)
"""Kept are: the traces that meet a condition; the groups of which every trace does; those of which one does."""

PRESETS: dict[str, tuple[str, str]] = {
    "high-value-then-lost": ("peak >= 0.5 and reward < 0.5", TRACE),
    "solved-by-luck": ("last <= 0.3 and reward >= 0.5", TRACE),
    "never-solvable": ("peak < 0.1 and reward <= 0", GROUP),
    "always-solved": ("reward >= 0.5", GROUP),
}
"""Name -> (condition, by); for rewards from 0 to 1."""

COMPARE: dict[type, Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
ALLOWED = "a condition may use comparisons, and, or, not, + - * /, numbers and names"


@dataclass(frozen=True)
class Condition:
    """A condition as it was written; ``by`` is one of ``BY``."""

    text: str
    by: str
    tree: ast.expr
    names: frozenset[str]

    def holds(self, traits: Traits) -> bool | None:
        """Whether one trace meets it; None where a number that it asks for is unknown."""
        if any(math.isnan(traits[name]) for name in self.names):
            return None
        return _truth(self.tree, traits)


def read_condition(text: str, by: str | None = None) -> Condition:
    """A preset by its name, or an expression; ``by`` overrides the preset's own, which else is ``trace``.

    Raises:
        ValueError: what is not understood, and what is; an unknown name, and those that are known.
    """
    if by is not None and by not in BY:
        raise ValueError(f"by={by!r}: expected one of {', '.join(BY)}")
    source, preset_by = PRESETS.get(text.strip(), (text, TRACE))
    if len(source) > LONGEST:
        raise ValueError(f"where: expected up to {LONGEST} characters, got {len(source)}")
    if "\0" in source:  # some Pythons call this a ValueError, others a SyntaxError
        raise ValueError(f"where: {text!r} cannot be read: it holds a null character; {ALLOWED}")
    try:
        with warnings.catch_warnings():  # of a number that a word follows at once, as in .5and, or of `1 == (2)`
            warnings.simplefilter("ignore")
            tree = ast.parse(source.strip(), mode="eval").body
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        _check_names(text, names)
        _truth(tree, dict.fromkeys(TRAITS, 1.0))  # raises at the first node that is not allowed
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"where: {text!r} cannot be read: {_said(error)}; {ALLOWED}") from error
    return Condition(text.strip(), by or preset_by, tree, names)


def _said(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or "it is nested too deeply")


def _check_names(text: str, names: frozenset[str]) -> None:
    unknown = sorted(names - TRAITS.keys())
    if unknown:
        hint = nearest(unknown[0], list(TRAITS)) or nearest(text.strip(), list(PRESETS))
        raise ValueError(
            f"where: {text!r}: unknown name {unknown[0]!r}.{hint} Names: {', '.join(TRAITS)}. Presets: "
            f"{', '.join(PRESETS)}"
        )


def _truth(node: ast.expr, traits: Traits) -> bool | None:
    """None where a number is unknown, as a quotient by 0 is. Every part is looked at, also where the first one decides, so
    that a check meets all of them."""
    if isinstance(node, ast.BoolOp):
        parts = [_truth(part, traits) for part in node.values]
        if None in parts:
            return None
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found = _truth(node.operand, traits)
        return None if found is None else not found
    if isinstance(node, ast.Compare) and all(type(op) in COMPARE for op in node.ops):
        numbers = [_number(part, traits) for part in (node.left, *node.comparators)]
        if any(map(math.isnan, numbers)):
            return None
        pairs = zip(node.ops, numbers, numbers[1:], strict=False)
        return all(COMPARE[type(op)](left, right) for op, left, right in pairs)
    raise ValueError(f"where: expected a condition such as 'peak > 0.7', got {_source(node)}; {ALLOWED}")


def _number(node: ast.expr, traits: Traits) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _as_float(node)
    if isinstance(node, ast.Name):
        return traits[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _number(node.operand, traits)
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _number(node.left, traits), _number(node.right, traits)
        if isinstance(node.op, ast.Div) and right == 0:
            return math.nan
        return ARITHMETIC[type(node.op)](left, right)
    raise ValueError(f"where: expected a number, got {_source(node)}; {ALLOWED}")


def _as_float(node: ast.Constant) -> float:
    try:
        return float(node.value)  # type: ignore[arg-type]
    except OverflowError as error:
        raise ValueError(f"where: {_source(node)} is too large a number") from error


def _source(node: ast.expr) -> str:
    text = ast.unparse(node)
    return repr(text if len(text) <= 60 else text[:60] + " …")


@dataclass(frozen=True)
class Selection:
    """Per trace: ``kept`` by all conditions; ``met[c]`` traces by condition c alone; ``unknown`` numbers."""

    kept: list[bool]
    met: list[int]
    unknown: int


def select(
    traces: Sequence[Trace], keys: Sequence[Key], conditions: Sequence[Condition], invert: bool = False
) -> Selection:
    """The traces that meet all conditions, or with ``invert`` those that do not; ``keys`` names the group of each.

    A trace of which a number that is asked for is unknown (a reward that was not finite) is never kept, and
    keeps its group from meeting a condition that asks for all.
    """
    traits = all_traits(traces, keys)
    answers = [[condition.holds(own) for own in traits] for condition in conditions]
    unknown = [any(answer[i] is None for answer in answers) for i in range(len(traces))]
    met = [_for_each_trace(keys, answer, c.by) for answer, c in zip(answers, conditions, strict=True)]
    together = [all(column) for column in zip(*met, strict=True)] if met else [True] * len(traces)
    kept = [(meets != invert) and not lost for meets, lost in zip(together, unknown, strict=True)]
    return Selection(kept, [sum(column) for column in met], sum(unknown))


def _for_each_trace(keys: Sequence[Key], answers: Sequence[bool | None], by: str) -> list[bool]:
    """From the answers for traces to those for what is kept together."""
    if by == TRACE:
        return [bool(answer) for answer in answers]
    groups: dict[Key, list[bool]] = {}
    for key, answer in zip(keys, answers, strict=True):
        groups.setdefault(key, []).append(bool(answer))
    decide = all if by == GROUP else any
    return [decide(groups[key]) for key in keys]
