"""What is put between a truncated dialogue and an answer is what the model's own chat template would have there."""

from __future__ import annotations

from typing import Any

import pytest

from rredcot_plugin.adapter.prompted_rollouts import PROMPT_TAIL
from rredcot_plugin.text.dialogue import Turns
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.text.tool_calls import calls_in
from tests.unit.chat_templates import CHATS, OPENED, Chat, chat_of, with_template

ASKED = {"role": "user", "content": "What is 6 * 7?"}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'
TOLD = {"role": "tool", "content": "42"}
THOUGHT = "<think>\nI can ask.\n</think>\n\n"
OPEN_CALLS = [CALL[:12], CALL[:40], CALL[:-1], CALL, CALL + "\n"]


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def encoder_of(name: str) -> tuple[Chat, ProbeEncoder, str]:
    """The encoder has seen a batch of this model; and what the model's thoughts look like, nothing if it has none."""
    chat = chat_of(name)
    encoder = ProbeEncoder(chat.tokenizer)
    thinks = name in ("thinks", "opened")
    prompt = chat.render(ASKED, opened=True)
    encoder.observe([THOUGHT * thinks + "so\n\\boxed{42}"], [prompt[-40:]])
    return chat, encoder, THOUGHT if thinks else ""


def bridge(chat: Chat, encoder: ProbeEncoder, text: str) -> str:
    """What stands behind a dialogue that began with ``ASKED``, its prompt known by its last tokens only."""
    prompt = chat.render(ASKED, opened=True)
    assert text.startswith(prompt)
    ids = chat.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    tail = chat.tokenizer.decode(ids[-PROMPT_TAIL:])
    return encoder.bridge_after(text[len(prompt) :], tail)


def header(name: str, chat: Chat) -> str:
    """What a prompt ends in, without the thought that it may open: the model's own text begins behind it."""
    return "<|assistant|>" if name == "opened" else "<|im_start|>assistant\n"


def dialogue(name: str, chat: Chat, *messages: dict[str, Any]) -> str:
    """A dialogue up to where the assistant's turn begins."""
    text = chat.render(ASKED, *messages, opened=True)
    return text[: text.rindex(header(name, chat)) + len(header(name, chat))]


@pytest.mark.parametrize("name", CHATS)
def test_in_its_turn_the_answer_goes_on_where_the_text_stops(name: str) -> None:
    """At the beginning, in a thought, behind one and amid prose; in the first turn, and in one behind a tool's answer."""
    chat, encoder, thought = encoder_of(name)
    for before in ([], [said(thought + CALL), TOLD]):
        begun = dialogue(name, chat, *before)
        own = ["", thought, thought + "First,", thought + "First,\n"] if thought else ["", "First,", "First,\n"]
        own = own[1:] if name == "opened" else own  # its thought stands there from the start
        for content in [*own, thought[:8], thought[:15]]:
            found = bridge(chat, encoder, begun + content)
            whole = chat.render(ASKED, *before, said(content + found + "42}"))
            assert whole.startswith(begun + content + found + "42}"), (before, content, found)
            assert found.count("\\boxed{") == 1 and "\n\n\n" not in content + found
            assert (content + found).count("</think>") == (content + found).count("<think>") == bool(thought)


@pytest.mark.parametrize("name", CHATS)
def test_behind_a_call_that_no_tool_has_answered_the_answer_has_a_turn_of_its_own(name: str) -> None:
    chat, encoder, thought = encoder_of(name)
    for before in ([], [said(thought + CALL), TOLD]):
        begun = dialogue(name, chat, *before)
        for call in OPEN_CALLS:
            content = f"{thought}I ask.\n{call}"
            found = bridge(chat, encoder, begun + content)
            answer = found.removeprefix(chat.lead)
            assert answer != found and answer.startswith(chat.thought + "**Final")
            whole = chat.render(ASKED, *before, said(content), said(answer + "42}"))
            assert whole.startswith(begun + content + found + "42}"), call


@pytest.mark.parametrize("name", CHATS)
def test_behind_a_tools_answer_the_assistants_turn_is_opened_where_it_is_not(name: str) -> None:
    chat, encoder, thought = encoder_of(name)
    told = chat.render(ASKED, said(thought + CALL), TOLD)
    for missing in ("", "\n", chat.lead.partition("<|im_start|>")[0] if name != "opened" else ""):
        text = told.removesuffix(missing)
        found = bridge(chat, encoder, text)
        answer = found.partition(header(name, chat))[2]
        assert answer.startswith(chat.thought + "**Final")
        whole = chat.render(ASKED, said(thought + CALL), TOLD, said(answer + "42}"))
        assert whole.startswith(text + found + "42}"), (missing, found)


def test_a_call_in_a_thought_and_one_that_prose_follows_are_no_calls_to_wait_for() -> None:
    chat, encoder, _ = encoder_of("thinks")
    begun = dialogue("thinks", chat)
    assert bridge(chat, encoder, f"{begun}<think>\nI could {CALL[:20]}").startswith("\n</think>\n\n**Final")
    assert bridge(chat, encoder, f"{begun}{THOUGHT}{CALL}\nI see.").startswith("\n\n**Final")


def test_thoughts_that_nobody_opens_are_closed_in_every_turn() -> None:
    chat = chat_of("hermes")
    encoder = ProbeEncoder(chat.tokenizer)
    encoder.observe(["I can ask.</think>\\boxed{42}"], ["<|im_start|>assistant\n"])
    told = dialogue("hermes", chat, said("I can ask.</think>" + CALL), TOLD)
    assert bridge(chat, encoder, told + "I see").startswith("\n</think>\n\n**Final")
    assert bridge(chat, encoder, told + "I see</think>").startswith("\n\n**Final")


def test_a_prompt_that_forbids_thoughts_has_its_own_empty_one() -> None:
    encoder = ProbeEncoder(chat_of("thinks").tokenizer)
    tail = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    encoder.observe(["\\boxed{1}"], [tail])
    assert encoder.bridge_after("", tail) == "**Final Answer**\n\\boxed{"
    assert encoder.bridge_after("First,", tail) == "\n\n**Final Answer**\n\\boxed{"


@pytest.mark.parametrize("name", CHATS)
def test_references_go_on_from_the_same_places(name: str) -> None:
    chat, encoder, thought = encoder_of(name)
    prompt = chat.render(ASKED, opened=True)
    content = thought.removeprefix("<think>\n" * (name == "opened")) + CALL
    encoder.max_probe_tokens = 99
    probe = encoder.encode_reference(content, "6 * 7 = 42", "", prompt[-40:])
    assert probe is not None
    ids, skip = probe
    assert chat.tokenizer.decode(list(ids[:skip])) == chat.lead + chat.thought
    assert chat.tokenizer.decode(list(ids[skip:])) == "6 * 7 = 42"


@pytest.mark.parametrize(
    "template",
    [None, "{{ 1 // 0 }}", "{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }}{% endfor %}"],
)
def test_without_marks_of_turns_there_is_one_turn(template: str | None) -> None:
    tokenizer = with_template(OPENED)
    tokenizer.chat_template = template
    assert Turns.of(tokenizer) is None
    assert ProbeEncoder(tokenizer).bridge_after("I ask " + CALL).startswith("\n\n**Final")


def test_calls_are_the_same_however_they_are_written() -> None:
    a, b = '{"name": "f", "arguments": {"x": 1, "y": [2]}}', '{"arguments":{"y":[2],"x":1},\n"name":"f"}'
    one, two = (f"so <tool_call>{call}</tool_call> and" for call in (a, b))
    (here,), (there,), (other,) = map(calls_in, (one, two, one.replace("1", "2")))
    assert here[1] == there[1] != other[1]
    assert one[here[0] :] == two[there[0] :] == " and"
    assert [call for _, call in calls_in(f"<|tool_call>call:f{{\nx:1 }}<tool_call|>{one}")] == [
        "call:f{ x:1 }",
        here[1],
    ]


@pytest.mark.parametrize("text", ["", "<tool_call>", "</tool_call>", "<tool_call>{</tool_call>", "[" * 9999])
def test_any_text_has_calls_or_none(text: str) -> None:
    assert len(calls_in(f"<tool_call>{text}</tool_call>")) == 1
    assert calls_in("<tool_call>" * 3) == [] == calls_in(text.replace("</tool_call>", ""))
