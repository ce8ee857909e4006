r"""Processes that compare mathematical answers with `math-verify`, and the pool that asks them.

Both sides of a pipe: `Pool` and `Worker` are what reward.py holds, `python answer_workers.py --worker` is the process that a
`Worker` starts: JSON lines in, JSON lines out. Comparisons need a process because they must be stopped when they take too
long or too much memory, and math-verify's own limits (signals) do not work in the threads that verl scores in.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

START_SECONDS = 120.0
MEMORY_BYTES = 4 * 2**30
SPARE_SECONDS = 5
"""How much longer than its time a worker goes on where nobody is left to end it."""
TINY = 1e-3
"""Numbers below that in size are compared by their relative difference, which may be as large."""
_PERCENT = re.compile(r"\\?%$")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_EQUALS = re.compile(r"(?<![<>!\\])=")
_NAME = r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?"
_SPACE = r"[\s~$/:]|\\[,;: ]|\\(?:cup|cap)(?![a-zA-Z])"
_OR = (
    r"[&|]|\\\\|\\(?:lor|vee|land|wedge|mid|newline|q?quad)(?![a-zA-Z])"
    r"|\\(?:text\w*|mbox|mathrm)\s*\{\s*(?:or|and)\s*\}|\b(?:or|and)\b"
)
_NEXT = re.compile(rf"(?P<value>.*?[^\s/:])(?P<joiner>(?:{_SPACE}|{_OR})*)(?P<name>{_NAME})\s*", re.DOTALL)
r"""Between two "=": the value of one statement and the name of the next, as in the middle of `x = 4 \lor x = 5`."""
_ROUNDED = re.compile(r"(?:^|=)\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*\\approx\s*([+-]?[0-9]+(?:\.([0-9]+))?)\s*$")


class Worker:
    """One process that compares answers; started at the first question, replaced after a question it died of."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: Mapping[str, str], timeout: float) -> bool | None:
        """The worker's answer; None if it took longer than `timeout` seconds or ended."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()  # it ended between questions
        process = self._process if self._process is not None else self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({**question, "seconds": timeout}) + "\n")
            process.stdin.flush()
        except OSError:
            reply = None
        else:
            reply = _read_line(process, timeout)
        if reply is None:
            self.stop()
            return None
        return bool(json.loads(reply))

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, os.path.abspath(__file__), "--worker"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if _read_line(process, START_SECONDS) is None:
            process.kill()
            process.wait()
            raise RuntimeError(f"{' '.join(command)}: did not start; run it by hand to see why")
        self._process = process
        return process

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _read_line(process: subprocess.Popen[str], timeout: float) -> str | None:
    """One line of the process's output; None after `timeout` seconds or at its end."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    if not poll.poll(timeout * 1000):
        return None
    return process.stdout.readline() or None


class Pool:
    """`size` workers that any number of threads may ask."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"RREDCOT_MATH_WORKERS={size}: expected a positive integer")
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(Worker())

    def ask(self, question: Mapping[str, str], timeout: float) -> bool | None:
        """Like `Worker.ask`, by the next worker that is free."""
        worker = self._idle.get()
        try:
            return worker.ask(question, timeout)
        finally:
            self._idle.put(worker)


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _parse(answer: str) -> list[Any]:
    """math-verify's reading of an answer as LaTeX; empty where it has none."""
    from math_verify import LatexExtractionConfig, parse

    boxed = f"$\\boxed{{{answer}}}$"
    return parse(boxed, [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)


def _same(gold: list[Any], answer: str) -> bool:
    from math_verify import verify

    parsed = _parse(answer)
    if not gold or not parsed or not verify(gold, parsed, timeout_seconds=None):
        return False
    return not _differs_though_tiny(gold[0], parsed[0])


def _differs_though_tiny(gold: Any, answer: Any) -> bool:
    """Whether numbers differ that math-verify takes for equal because it rounds to six decimal places."""
    try:
        right, given = float(gold), float(answer)
    except (TypeError, ValueError, OverflowError):
        return False  # no numbers
    return abs(right) < TINY and abs(given - right) > max(TINY * abs(right), 1e-12 * (right == 0))


def _listed(answer: str) -> str:
    r"""Statements that a word or sign joins, as the list "x = 4, x = 5"; a chain ("x = 2 + 3 = 5") as it is.

    Spaces and what is also an operator, like the slash, join them only where the name is the same.

    >>> _listed(r"x=4 \lor x=5"), _listed("x = 4 / x = 5"), _listed(r"a=4 \quad b=5"), _listed("y = 3 x = 12")
    ('x=4, x=5', 'x = 4, x = 5', 'a=4, b=5', 'y = 3 x = 12')
    """
    first, *middle = _EQUALS.split(answer)
    for place, part in enumerate(middle[:-1]):
        found = _NEXT.fullmatch(part)
        if found is None:
            continue
        again = found["name"] == first.strip() and re.search(r"[0-9.)\]}]$", found["value"])
        if again or re.search(_OR, found["joiner"]):
            middle[place] = f"{found['value']}, {part[found.start('name') :]}"
    return "=".join([first, *middle])


def _parts(gold: str, answer: str) -> list[str]:
    r"""What must equal the gold answer, each: of "x = 4" the 4, of "4 = 5" or `4 \approx 5` both, else all of it."""
    rounded = _ROUNDED.search(answer)
    if rounded:
        exact, shown = float(rounded[1]), float(rounded[2])
        if abs(exact - shown) >= max(10.0 ** -len(rounded[3] or ""), abs(exact) / 10):
            return [rounded[1], rounded[2]]
    if re.search(r"[=,;<>]", gold) or re.search(r"[,;]", answer) or "=" not in answer:
        return [answer]
    parts = [part.strip() for part in _EQUALS.split(answer)]
    numeric = [part for part in parts if part and not re.search("[a-zA-Z]", _COMMAND.sub("", part))]
    return numeric if len(numeric) > 1 else [answer]


def compare(gold: str, answer: str) -> bool:
    """What a worker does: equality as math-verify sees it; `50%` is both 50 and 0.5."""
    gold, answer = _listed(gold), _listed(answer)
    gold_plain, answer_plain = _PERCENT.sub("", gold), _PERCENT.sub("", answer)
    parsed = _parse(gold_plain)
    if all(_same(parsed, part) for part in _parts(gold_plain, answer_plain)):
        return True
    if (gold_plain == gold) == (answer_plain == answer):
        return False
    if gold_plain != gold:
        return _same(_parse(f"\\frac{{{gold_plain}}}{{100}}"), answer)
    return _same(parsed, f"\\frac{{{answer_plain}}}{{100}}")


def _reply(question: Mapping[str, Any]) -> bool:
    if "answer" not in question:
        return bool(_parse(_PERCENT.sub("", question["gold"])))
    return compare(question["gold"], question["answer"])


def work() -> None:
    """Answer questions from standard input until it ends."""
    logging.disable(logging.CRITICAL)
    channel, sys.stdout = sys.stdout, sys.stderr
    _parse("1")  # imports sympy and builds the grammar
    _limit_memory()
    print("ready", file=channel, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        signal.alarm(math.ceil(question["seconds"]) + SPARE_SECONDS)  # unhandled, it ends the process
        try:
            reply = _reply(question)
        except Exception:  # noqa: BLE001  # sympy raises anything on hostile input; none of it is a right answer
            reply = False
        signal.alarm(0)
        print(json.dumps(reply), file=channel, flush=True)


if __name__ == "__main__" and sys.argv[1:] == ["--worker"]:
    work()
