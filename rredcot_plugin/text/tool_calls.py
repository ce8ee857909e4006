"""Calls of tools in what a model writes: where one begins and ends, and the same call written differently."""

from __future__ import annotations

import json
import re

CALLS = (
    ("<tool_call>", "</tool_call>"),
    ("<|tool_call>", "<tool_call|>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
)
"""What stands around calls in the formats that verl 0.9.1 reads (hermes, qwen3_coder and glm share the first). Its gpt-oss has
no mark of its own."""

MARKS = re.compile("|".join(re.escape(mark) for call in CALLS for mark in call))


def waits_for_tool(said: str) -> bool:
    """Whether a turn that reads ``said`` so far is in the middle of a call, or has just made one.

    >>> [waits_for_tool(said) for said in ("7", "<tool_call>{", "<tool_call>{}</tool_call>\\n", "<tool_call>{}</tool_call> so")]
    [False, True, True, False]
    """
    for opens, closes in CALLS:
        _, found, rest = said.rpartition(opens)
        if found:
            _, closed, behind = rest.partition(closes)
            if not closed or not behind.strip():
                return True
    return False


def calls_in(text: str) -> list[tuple[int, str]]:
    """The finished calls of a text in their order, each with the character at which it has ended, and in one way of writing:
    JSON without white space, its keys sorted; what is not JSON with its white space as single blanks. A call within an
    unfinished one takes its place, whatever is written later: the calls of a text are calls of any that begins with it.

    >>> calls_in('so <tool_call>\\n{"name": "f", "arguments": {"b": 1, "a": 2}}\\n</tool_call>')
    [(72, '{"arguments":{"a":2,"b":1},"name":"f"}')]
    """
    closing = dict(CALLS)
    found: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for mark in MARKS.finditer(text):
        if mark.group() in closing:
            begun = mark.end(), closing[mark.group()]
        elif begun is not None and begun[1] == mark.group():
            found.append((mark.end(), _written_once(text[begun[0] : mark.start()])))
            begun = None
    return found


def _written_once(call: str) -> str:
    try:
        return json.dumps(json.loads(call), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # models write anything
        return " ".join(call.split())
