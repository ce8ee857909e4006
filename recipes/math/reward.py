r"""Mathematical 0/1 reward with `math-verify`, in the form verl's `reward.custom_reward_function` asks for.

    reward.custom_reward_function.path=recipes/math/reward.py
    reward.custom_reward_function.name=compute_score

What counts is the final answer: the last `\boxed{}`, else what stands after the last `####`, else after the last
"The answer is". Where the response thinks, only the text after `</think>` is looked at. It scores 1 if it equals the
ground truth mathematically, else 0; an answer that names several values scores only if the ground truth does too.

Three things differ from calling math-verify directly:

- verl scores in executor threads, where math-verify's own time limits (signals) raise. Comparisons therefore run in
  worker processes, which are killed and replaced when they take too long or too much memory.
- Answers are read as LaTeX only. math-verify's reader of plain expressions hands text to `eval` (by way of sympy).
- Plain numbers and equal texts, nearly all there is, are compared here, in microseconds.

verl imports this file by its path, so that nothing else of this folder can be imported by name in its processes: the
worker processes are in answer_workers.py, which belongs beside this file and is loaded by its path too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_ANSWER_CHARS = 300
"""Longer text is not a final answer."""
TIMEOUT_SECONDS = float(os.environ.get("RREDCOT_MATH_TIMEOUT", "5"))
"""For one comparison, from the moment a worker has taken it."""
WORKERS = int(os.environ.get("RREDCOT_MATH_WORKERS", "2"))
"""Worker processes of each process that scores (verl has `reward.num_workers` of those)."""

THINK_START, THINK_END = "<think>", "</think>"
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)[ \t]*([+-]?[0-9]++(?:[.,][0-9]++)*+)(?![a-zA-Z])"
    r"(?![ \t]*(?:[-+/^=!%{(]|\*(?!\*)|\\(?![)\]])))"
)
r"""`\boxed 5`: a number, and not the beginning of something longer."""
_PHRASE = re.compile(r"[Tt]he (?:final )?answer is:?")
_PHRASE_END = re.compile(r"\.(?:[\s*]|$)|\n|<\|")
_DISPLAY = re.compile(r"(?<!\\)\\\[(.*?)\\\]|\$\$(.*?)\$\$", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![\w)}*])(\*\*?|__|`)(?![\s*])(.+?)(?<!\s)\1(?![\w({*])")
_JOINER = re.compile(r"[\s$.,;:/|&*()]*(?:or|and|\\text\{\s*(?:or|and)\s*\}|\\lor|\\cup)?[\s$.,;:/|&*()]*")
_MAX_JOINER_CHARS = 40
_MAX_JOINED = 16
_MAX_NESTING = 24
"""Brackets within brackets; the LaTeX grammar takes exponential time in them."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[, ][0-9]{3})+(?:\.[0-9]*)?")
_THIN = re.compile(r"\\[,!]|\\(?:displaystyle|left|right)(?![a-zA-Z])|\$")
_GAP = re.compile(r"(?:\\[;: ]|\\q?quad(?![a-zA-Z])|[\s~])+")
_LOOSE_SPACE = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")
_AS_LATEX = str.maketrans({"−": "-", "°": "^\\circ ", "·": "\\cdot ", "∞": "\\infty "})
_SEVERAL_NUMBERS = re.compile(r"(?<!\\frac)(?<!\\frac )(?<!\\log_)[0-9] [0-9]")
"""As in "4 3"; not the two arguments of `\\frac 1 2`, nor base and argument of `\\log_2 3`."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Score one response.

    Args:
        data_source: not needed; the answer format is the same for all.
        solution_str: the decoded response. Nothing in it can make this function raise.
        ground_truth: the right answer, LaTeX or plain.
        extra_info: verl passes the row's extra_info here; not needed.
        kwargs: `reward_kwargs` of the config and handles of verl's reward loop; not needed.

    Returns:
        `score` and `acc`: 1.0 or 0.0; `format`: 1.0 if there is a final answer; `pred`: its text, "" without one
        (verl's majority vote reads this key).

    Raises:
        ValueError: a ground truth that is not text (a mistake in the data).
        ImportError: math-verify is not installed.
        RuntimeError: no worker process could be started.
    """
    if not isinstance(ground_truth, str) or not ground_truth.strip():
        raise ValueError(f"ground_truth: got {ground_truth!r}, expected the answer as text (see prepare_data.py)")
    answer = extract_answer(solution_str)
    score = float(answer is not None and is_equal(ground_truth.strip(), answer))
    return {"score": score, "acc": score, "format": float(answer is not None), "pred": answer or ""}


def extract_answer(text: str) -> str | None:
    r"""The final answer of a response, or None: no marker, nothing after it, too long, or still thinking.

    Different boxes that are joined ("\boxed{4} or \boxed{5}") are one answer, "4, 5".

    >>> extract_answer(r"<think>\boxed{3}? no</think> It is $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    >>> extract_answer("2 + 2 = 4\n#### 4")
    '4'
    >>> extract_answer(r"<think> is it \boxed{3}") is None
    True
    """
    _, end, tail = text.rpartition(THINK_END)
    if not end and THINK_START in text:
        return None
    answer = _last_boxes(_BARE_BOX.sub(r"\\boxed{\1}", tail))
    if answer is None:
        answer = _after_marker(tail)
    answer = answer.strip() if answer else ""
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None


def _last_boxes(text: str) -> str | None:
    """Content of the last box and of those joined to it; None without a box, "" if the last is not closed."""
    starts = list(_BOXED.finditer(text))
    if not starts:
        return None
    contents: list[str] = []
    begin_of_next: int | None = None
    for found in reversed(starts[-_MAX_JOINED:]):
        content = _braced(text, found.end())
        if begin_of_next is None:
            if content is None:
                return ""
        elif content is None or not _joins(text[found.end() + len(content) + 1 : begin_of_next]):
            break
        if content not in contents:
            contents.append(content)
        begin_of_next = found.start()
    return ", ".join(reversed(contents))


def _joins(between: str) -> bool:
    r"""True if this text between two boxes makes one answer of them.

    >>> _joins("$ or $"), _joins(". So the other root is ")
    (True, False)
    """
    return len(between) <= _MAX_JOINER_CHARS and _JOINER.fullmatch(between) is not None


def _braced(text: str, start: int) -> str | None:
    """Text up to the brace that closes the one opened before `start`; None if that is too far away."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_ANSWER_CHARS + 1)):
        character = text[position]
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:position]
    return None


def _after_marker(text: str) -> str | None:
    r"""The line after the last `####`, else the sentence after the last "The answer is"; else None.

    >>> _after_marker("**The answer is:** `5`."), _after_marker("The answer is:\n\\[\n5\n\\]")
    ('5', '$5$')
    """
    _, marker, tail = text.rpartition("####")
    if marker:
        return next(iter(_without_markdown(tail.strip()[: 2 * MAX_ANSWER_CHARS]).splitlines()), None)
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    start = phrases[-1].end()
    tail = _without_markdown(text[start : start + 2 * MAX_ANSWER_CHARS].strip())
    end = _PHRASE_END.search(tail)
    return _without_markdown(tail[: end.start()] if end else tail)


def _without_markdown(text: str) -> str:
    """The text without marks of emphasis, unpaired ones at its ends included, and displayed formulas on one line."""
    inline = _DISPLAY.sub(lambda found: f"${' '.join((found[1] or found[2] or '').split())}$", text)
    return _EMPHASIS.sub(r"\2", inline).strip("*_` \n")


def normalise(answer: str) -> str:
    r"""The answer without what only changes its looks: spaces, dollar signs, `\left`, the minus sign's code.

    >>> normalise(r"$ \left( 1,\, 2 \right) $"), normalise("4  3")
    ('(1,2)', '4 3')
    """
    plain = answer.replace("\N{MINUS SIGN}", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    plain = _GAP.sub(" ", _THIN.sub("", plain.replace("\\$", "")))
    return _LOOSE_SPACE.sub("", plain).rstrip(".")


def parse_number(text: str) -> Decimal | None:
    """The value of a plain decimal number (sign, leading zeros, thousands commas allowed), else None.

    >>> parse_number("1,000.50"), parse_number("1e9")
    (Decimal('1000.50'), None)
    """
    plain = text.replace(",", "").replace(" ", "") if _THOUSANDS.fullmatch(text) else text
    return Decimal(plain) if _NUMBER.fullmatch(plain) else None


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest


@lru_cache(maxsize=8192)
def is_equal(gold: str, answer: str) -> bool:
    r"""True if the two answers are the same mathematically; a comparison that takes too long is a no.

    >>> is_equal("1000", "1,000.0"), is_equal("4", "42")
    (True, False)
    """
    left, right = normalise(gold), normalise(answer)
    if left == right:
        return bool(right)
    if not right or _nesting(right) > _MAX_NESTING:
        return False
    left_number, right_number = parse_number(left), parse_number(right)
    if left_number is not None and right_number is not None:
        return left_number == right_number
    if _SEVERAL_NUMBERS.search(right) and not _SEVERAL_NUMBERS.search(left):
        return False  # math-verify would add them up
    return _ask({"gold": _without_tail(gold), "answer": _without_tail(answer)})


@lru_cache(maxsize=8192)
def is_parsable(gold: str) -> bool:
    """True if math-verify can read this ground truth, so that answers can be compared with it; longer than an answer may be, none
    ever equals it."""
    if len(gold) > MAX_ANSWER_CHARS:
        return False
    if parse_number(normalise(gold)) is not None:
        return True
    return _ask({"gold": _without_tail(gold)})


def _without_tail(answer: str) -> str:
    return answer.translate(_AS_LATEX).strip().strip("$").rstrip(".").strip()


def require_math_verify() -> None:
    """ImportError with the way out where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("recipes/math/reward.py needs math-verify: pip install 'math-verify>=0.9'")


def _load_beside(name: str) -> ModuleType:
    """A file of this folder as a module of its own; ImportError naming it where it does not lie there."""
    path = Path(__file__).resolve().with_name(f"{name}.py")
    if not path.is_file():
        raise ImportError(f"{path}: not found; put {name}.py beside reward.py")
    spec = importlib.util.spec_from_file_location(f"rredcot_recipes_math_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_workers = _load_beside("answer_workers")
_THE_POOL: dict[int, Any] = {}
_LOCK = threading.Lock()


def _pool() -> Any:
    """This process's pool (a forked child gets one of its own)."""
    with _LOCK:
        if os.getpid() not in _THE_POOL:
            _THE_POOL.clear()
            _THE_POOL[os.getpid()] = _workers.Pool(WORKERS)
        return _THE_POOL[os.getpid()]


def _ask(question: Mapping[str, str]) -> bool:
    """The reply of a worker; False where it took too long."""
    require_math_verify()
    return bool(_pool().ask(question, TIMEOUT_SECONDS))
