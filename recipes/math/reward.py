r"""Mathematical 0/1 reward with `math-verify`, in the form verl's `reward.custom_reward_function` asks for.

    reward.custom_reward_function.path=recipes/math/reward.py
    reward.custom_reward_function.name=compute_score

What counts is the final answer: the last `\boxed{}`, else what stands after the last `####`, else after the last
"The answer is". Where the response thinks, only the text after `</think>` is looked at. It scores 1 if it equals the
ground truth mathematically, else 0; an answer that names several values scores only if the ground truth does too.

Four things differ from calling math-verify directly:

- verl scores in executor threads, where math-verify's own time limits (signals) raise. Comparisons therefore run in
  worker processes, which are killed and replaced when they take too long or too much memory.
- Answers are read as LaTeX only. math-verify's reader of plain expressions hands text to `eval` (by way of sympy).
- Plain numbers and equal texts, nearly all there is, are compared here, in microseconds.
- What math-verify would have to work out first is no answer: `\sum_{k=1}^{9} k`, or an expression of the question.

verl imports this file by its path, so that nothing else of this folder can be imported by name in its processes: the
worker processes are in answer_workers.py and what reads responses in final_answer.py, which belong beside this file and
are loaded by their paths too.
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

TIMEOUT_SECONDS = float(os.environ.get("RREDCOT_MATH_TIMEOUT", "5"))
"""For one comparison, from the moment a worker has taken it."""
WORKERS = int(os.environ.get("RREDCOT_MATH_WORKERS", "2"))
"""Worker processes of each process that scores (verl has `reward.num_workers` of those)."""


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


_workers, _final = _load_beside("answer_workers"), _load_beside("final_answer")
extract_answer, MAX_ANSWER_CHARS = _final.extract_answer, _final.MAX_ANSWER_CHARS

_MAX_NESTING = 24
"""Brackets within brackets; the LaTeX grammar takes exponential time in them."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[, ][0-9]{3})+(?:\.[0-9]*)?")
_THIN = re.compile(r"\\[,!]|\\(?:displaystyle|left|right)(?![a-zA-Z])|\$")
_GAP = re.compile(r"(?:\\[;: ]|\\q?quad(?![a-zA-Z])|[\s~])+")
_LOOSE_SPACE = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")
_AS_LATEX = str.maketrans({"−": "-", "°": "^\\circ ", "·": "\\cdot ", "∞": "\\infty "})
_LISTED_HUNDREDS = re.compile(r"(?<=[0-9]), (?=[0-9]{3}(?![0-9]))")
"""As in "100, 200", which names two numbers, where "100,200" is one."""
_OF_A_UNIT = re.compile(r"(\S+) ((?:[a-zA-Z]{3,} ?){1,4})")
_NOT_UNITS = re.compile(
    r"\b(?:and|or|not|nor|to|through|over|times|divided|plus|minus|less|more|than|choose|factorial|mod|squared|cubed|percent"
    r"|hal(?:f|ves)|thirds?|fourths?|quarters?|(?:fif|six|seven|eigh|nin|ten|twelf)ths?|hundred\w*|thousand\w*"
    r"|[mbt]r?illion\w*|dozens?|pairs?|log|sin|cos|tan|sqrt"
    r"|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b",
    re.IGNORECASE,
)
_LEFT_TO_DO = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|gcd|lcm|det|[bp]?mod|max|min)(?![a-zA-Z])|\\begin\s*\{[vV]matrix\}"
    r"|\\operatorname\*?\s*\{\s*(?:gcd|lcm|max|min)|(?<=[\w)}])\s*!(?!=)"
    r"|\\frac\s*\{\s*(?:d|\\partial)(?![a-zA-Z])[^{}]*\}\s*\{\s*(?:d|\\partial)\s*[a-zA-Z]"
)
r"""What is still to be worked out, as in `\sum_{k=1}^{9} k`; math-verify would do it."""
_OPERATION = re.compile(
    r"(?<=[\w)}])(?:[-+*/^]|\\(?:cdot|times|div)(?![a-zA-Z]))|\\(?:frac|sqrt|binom|sin|cos|tan|log|ln)(?![a-zA-Z])"
)
_FORMULA_ENDS = re.compile(r"\$+|\\[()\[\]]")
_ATOM = re.compile(r"[0-9]+|(?<![\\a-zA-Z])[a-zA-Z]")
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
        extra_info: verl passes the row's extra_info here; its `question`, if there, is what answers may not copy from.
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
    question = str((extra_info or {}).get("question") or "")
    score = float(
        answer is not None
        and not leaves_the_work(ground_truth, answer, question)
        and is_equal(ground_truth.strip(), answer)
    )
    return {"score": score, "acc": score, "format": float(answer is not None), "pred": answer or ""}


def normalise(answer: str) -> str:
    r"""The answer without what only changes its looks: spaces, dollar signs, `\left`, the minus sign's code.

    >>> normalise(r"$ \left( 1,\, 2 \right) $"), normalise("4  3")
    ('(1,2)', '4 3')
    """
    plain = answer.replace("\N{MINUS SIGN}", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    plain = _GAP.sub(" ", _THIN.sub("", plain.replace("\\$", "")))
    plain = _LISTED_HUNDREDS.sub(";", plain)
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


def leaves_the_work(gold: str, answer: str, question: str) -> bool:
    r"""True for an answer that math-verify would have to work out: one with a sum, a limit and the like that the ground truth
    does not have, or an expression that stands in the question and is not the ground truth in another spelling.

    >>> leaves_the_work("285", r"\sum_{k=1}^{9} k^2", ""), leaves_the_work("6", "3!", "")
    (True, True)
    >>> question = "Write $\\frac{18}{24}$ in lowest terms, or say that it is."
    >>> leaves_the_work("3/4", r"\frac{18}{24}", question), leaves_the_work("3/4", r"\frac{3}{4}", question)
    (True, False)
    """
    if _LEFT_TO_DO.search(answer) and not _LEFT_TO_DO.search(gold):
        return True
    own = normalise(answer)
    if not question or not _OPERATION.search(own) or sorted(_ATOM.findall(own)) == sorted(_ATOM.findall(gold)):
        return False
    copied = re.compile(rf"(?<![\w\\^{{]){re.escape(own)}(?![\w^{{!(])")
    return any(copied.search(normalise(part)) for part in _FORMULA_ENDS.split(question))


def is_equal(gold: str, answer: str) -> bool:
    r"""True if the two answers are the same mathematically; a comparison that takes too long is a no.

    >>> is_equal("1000", "1,000.0"), is_equal("4", "42"), is_equal("5", "5 dollars")
    (True, False, True)
    """
    left, right = normalise(gold), normalise(answer)
    if left == right:
        return bool(right)
    if not right or _nesting(right) > _MAX_NESTING:
        return False
    left_number, right_number = parse_number(left), parse_number(right)
    if left_number is not None and right_number is not None:
        return left_number == right_number
    unit = _OF_A_UNIT.fullmatch(right) if left_number is not None else None
    if unit is not None and not _NOT_UNITS.search(unit[2]):
        return parse_number(unit[1]) == left_number
    if _SEVERAL_NUMBERS.search(right) and not _SEVERAL_NUMBERS.search(left):
        return False  # math-verify would add them up
    return _ask(gold, answer)


def is_parsable(gold: str) -> bool:
    """True if math-verify can read this ground truth, so that answers can be compared with it; longer than an answer may be, none
    ever equals it."""
    if len(gold) > MAX_ANSWER_CHARS:
        return False
    if parse_number(normalise(gold)) is not None:
        return True
    return _ask(gold)


def _without_tail(answer: str) -> str:
    return answer.translate(_AS_LATEX).strip().strip("$").rstrip(".").strip()


def require_math_verify() -> None:
    """ImportError with the way out where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("recipes/math/reward.py needs math-verify: pip install 'math-verify>=0.9'")


_THE_POOL: dict[int, Any] = {}
_LOCK = threading.Lock()


def _pool() -> Any:
    """This process's pool (a forked child gets one of its own)."""
    with _LOCK:
        if os.getpid() not in _THE_POOL:
            _THE_POOL.clear()
            _THE_POOL[os.getpid()] = _workers.Pool(WORKERS)
        return _THE_POOL[os.getpid()]


class _NoReplyError(Exception):
    """A worker took too long, or ended: no reply that is worth remembering."""


def _ask(gold: str, answer: str | None = None) -> bool:
    """Whether a worker finds them equal, or, without an answer, can read the ground truth; False where there was no reply in
    time."""
    try:
        return _reply(_without_tail(gold), None if answer is None else _without_tail(answer))
    except _NoReplyError:
        return False


@lru_cache(maxsize=8192)
def _reply(gold: str, answer: str | None) -> bool:
    require_math_verify()
    question = {"gold": gold} if answer is None else {"gold": gold, "answer": answer}
    found = _pool().ask(question, TIMEOUT_SECONDS)
    if found is None:
        raise _NoReplyError
    return bool(found)
