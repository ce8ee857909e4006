"""recipes/agent: whatever a model writes to its tools, the reply is a short text; only its own last turn is rewarded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rredcot_plugin.sandbox import Limits, Result, SandboxFailed, available
from tests.unit.agent_recipe import AGENT, agent  # noqa: F401  fixture
from tests.unit.recipe_scripts import load

Ask = Callable[[str], str]
MOST = 48
"""Characters of a reply, as the tiny tool user's script sets it."""


def asker(tool: Any) -> Ask:
    """A function from the JSON text of a call's arguments to what verl's own loop puts into the dialogue."""
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall

    loop = SimpleNamespace(
        tools={tool.name: tool}, max_tool_response_length=MOST, tool_response_truncate_side="middle"
    )
    data: Any = SimpleNamespace(_active_tools=loop.tools)

    def ask(arguments: str) -> str:
        call = FunctionCall(name=tool.name, arguments=arguments)
        reply, reward, _ = asyncio.run(ToolAgentLoop._call_tool(loop, call, {}, data))  # type: ignore[arg-type]
        assert reward == 0.0
        return str(reply.text)

    return ask


def tool_of(file: str) -> Any:
    from verl.tools.tool_registry import initialize_tools_from_config

    (tool,) = initialize_tools_from_config(str(AGENT / file))
    return tool


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*35-48", "372"),
        (" 2 * (3 + 4) ", "14"),
        ("-7--7", "0"),
        ("1/8", "0.125"),
        ("-2/3", "-0.666667"),
        ("0.1+0.2", "0.3"),
        ("1e3", "1000"),
        ("7/0", "error: division by zero"),
        ("12*", "error: not an expression"),
        ("12 bags", "error: not an expression"),
        ("__import__('os').system('true')", "error: not an expression"),
        ("[1][0]", "error: not an expression"),
        ("True+1", "error: not an expression"),
        ("'a'*9", "error: not an expression"),
        ("2**10", "error: only + - * / are known"),
        ("1<<99", "error: only + - * / are known"),
        ("9" * 100 + "*1", "error: number too large"),
        ("9" * 70 + "*" + "9" * 70, "error: number too large"),
        ("1e400", "error: number too large"),
        ("1" * 201, "error: more than 200 characters"),
        ("(" * 150, "error: not an expression"),
        ("", "error: no expression"),
        (None, "error: no expression"),
        ({"a": 1}, "error: no expression"),
        ("\0", "error: not an expression"),
        ("\ud800", "error: not an expression"),
    ],
)
def test_the_calculator_answers_everything(agent: Any, expression: object, value: str) -> None:
    assert agent("arithmetic").calculate(expression) == value


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        ('{"expression": "6*7"}', "42"),
        ('{"expression": "6/0"}', "error: division by zero"),
        ('{"expression": 5}', "error: no expression"),
        ("{}", "error: no expression"),
        ("[1]", "error: no expression"),
        ("null", "error: no expression"),
    ],
)
def test_calls_reach_the_calculator_through_verls_loop(agent: Any, arguments: str, reply: str) -> None:
    assert asker(tool_of("calculator.yaml"))(arguments) == reply


def test_a_call_in_broken_json_is_answered(agent: Any) -> None:
    assert "Invalid JSON" in asker(tool_of("calculator.yaml"))('{"expression": ')


@pytest.fixture(scope="module")
def ask_python(agent: Any) -> Ask:
    if available().means is None and not os.environ.get("RREDCOT_REQUIRE_SANDBOX"):
        pytest.skip(f"{available()}")
    return asker(tool_of("python_tool.yaml"))


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        ('{"code": "print(sum(range(5)))"}', "10"),
        ('{"code": "print(1)\\n1/0"}', "1\nZeroDivisionError: division by zero"),
        ('{"code": "x = 1"}', "error: nothing was printed"),
        ('{"code": "import sys; sys.exit(3)"}', "error: exit status 3"),
        ('{"code": ""}', "error: no code"),
        ('{"code": ["print(1)"]}', "error: no code"),
        ('{"code": "print(\\ud800)"}', "surrogates not allowed"),
        ('{"code": "\\u0000"}', "null bytes"),
        ("7", "error: no code"),
    ],
)
def test_python_answers_everything(ask_python: Ask, arguments: str, reply: str) -> None:
    assert reply in ask_python(arguments)


@pytest.mark.parametrize("code", ["print('x' * 10**7)", "while True: print('x' * 1000)", "print('x' * 5000)"])
def test_megabytes_come_back_as_a_few_characters(ask_python: Ask, code: str) -> None:
    reply = ask_python(f'{{"code": "{code}"}}')
    assert reply.startswith("xxx") and "truncated" in reply and len(reply) < MOST + 30


@pytest.mark.parametrize(
    ("ended", "status", "streams", "told"),
    [
        ("exit", 0, ("5\n", "a warning"), "5"),
        ("output", None, ("5", ""), "5\nerror: more than 65536 bytes of output"),
        ("timeout", None, ("", ""), "error: not finished after 10 seconds"),
        ("exit", 137, ("", ""), "error: exit status 137"),
        ("exit", 1, ("5", "Traceback\nValueError: no\n"), "5\nValueError: no"),
    ],
)
def test_a_reply_says_how_a_program_ended(
    agent: Any, ended: str, status: int | None, streams: tuple[str, str], told: str
) -> None:
    assert agent("python_tool").said(Result(ended, status, *streams, seconds=0.1), Limits()) == told


def test_python_that_does_not_end_is_ended(agent: Any, ask_python: Ask) -> None:
    tool = tool_of("python_tool.yaml")
    tool.limits = agent("python_tool").Limits(cpu_seconds=1, wall_seconds=30.0)
    assert "42" in asker(tool)('{"code": "print(42, flush=True)\\nwhile True: pass"}')
    assert "more than" in asker(tool)(f'{{"code": "{"#" * 20_001}"}}')


def test_a_sandbox_that_fails_to_start_is_an_answer(
    agent: Any, ask_python: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise SandboxFailed("no memory")

    monkeypatch.setattr(agent("python_tool"), "run_code", fails)
    assert ask_python('{"code": "print(1)"}') == "error: the program could not be started"


@pytest.fixture(scope="module")
def reward() -> ModuleType:
    return load(AGENT / "reward.py", "agent_reward")


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "12*31"}}</tool_call>'


@pytest.mark.parametrize(
    ("response", "score", "calls"),
    [
        (f"{CALL}\ntool\n372\nassistant\n#### 372", 1.0, 1.0),
        ("#### 372", 1.0, 0.0),
        (f"{CALL}\nuser\n<tool_response>\n372\n</tool_response>\nassistant\nIt is \\boxed{{372.0}}.", 1.0, 1.0),
        (f"{CALL}\ntool\n372\nassistant\n#### 37", 0.0, 1.0),
        (f"{CALL}\ntool\n372", 0.0, 1.0),
        (f"#### 372\n{CALL}\ntool\n5\nassistant\nI do not know.", 0.0, 1.0),
        (f"{CALL}\ntool\n#### 372\nassistant\n", 0.0, 1.0),
        ("<tool_call>#### 372</tool_call>", 0.0, 1.0),
        ("<tool_call>#### 372", 0.0, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_only_the_models_own_last_turn_is_rewarded(
    reward: ModuleType, response: str, score: float, calls: float
) -> None:
    found = reward.compute_score("word_problems", response, "372", extra_info={}, more=1)
    assert (found["score"], found["acc"], found["calls"]) == (score, score, calls)


def test_data_without_a_ground_truth_are_a_mistake(reward: ModuleType) -> None:
    with pytest.raises(ValueError, match="ground_truth: got ''"):
        reward.compute_score("word_problems", "#### 1", "")
