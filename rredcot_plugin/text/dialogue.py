"""What must stand between a truncated dialogue and an answer, so that the model reads what its own chat template writes.

In the assistant's turn the answer goes on where the text stops, after the end of a thought that is open. Where it is not the
assistant's turn, or where a call of a tool stands that no tool has answered, the turn is closed and a new one opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rredcot_plugin.text.answers import THINK_END
from rredcot_plugin.text.tool_calls import waits_for_tool

THINK_START = "<think>"
EMPTY_THOUGHT = f"{THINK_START}\n\n{THINK_END}\n\n"
QUESTION, REPLY = "QUESTION", "REPLY"


@dataclass(frozen=True)
class Turns:
    """How a chat template changes speakers: what stands after the assistant's words (``end``) and after a user's
    (``others_end``), and what opens the assistant's next turn (``header``)."""

    end: str
    others_end: str
    header: str

    @classmethod
    def of(cls, tokenizer: Any) -> Turns | None:
        """Read off what the template makes of two messages; None without a template, or where it has no marks for this."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        asked, replied = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": REPLY}

        def render(*messages: dict[str, str], opened: bool = False) -> str:
            return str(tokenizer.apply_chat_template(list(messages), add_generation_prompt=opened, tokenize=False))

        try:
            before, opened, after = render(asked), render(asked, opened=True), render(asked, replied)
        except Exception:  # noqa: BLE001  a template may refuse messages with any error
            return None
        header = opened.removeprefix(before) if opened.startswith(before) else ""
        found = cls(after.rpartition(REPLY)[2], before.rpartition(QUESTION)[2], header)
        return found if found.opening and found.end.strip() else None

    @property
    def opening(self) -> str:
        """The header without blanks and without the thought that it may open."""
        return self.header.partition(THINK_START)[0].strip()

    def said(self, text: str) -> str | None:
        """What the assistant has said in its turn so far; None where it is not its turn.

        A text that does not show where the turn began is all in it.
        """
        _, _, said = text.rpartition(self.opening)
        return None if self.end.strip() in said else said

    def next_turn(self, text: str) -> str:
        """What opens the assistant's turn after a text that is not in it."""
        bare = text.rstrip()
        blanks, present = self.end[len(self.end.rstrip()) :], text[len(bare) :]
        if any(mark and bare.endswith(mark) for mark in (self.end.strip(), self.others_end.strip())):
            return blanks[len(present) :] + self.header
        return self.others_end + self.header


def opened_by(tail: str, turns: Turns | None) -> str:
    """What the end of a prompt has of the assistant's turn: its header, or the thought that it opens; else nothing.

    >>> opened_by("2 + 2 =<think>\\n", None)
    '<think>\\n'
    """
    mark = turns.opening if turns is not None and turns.opening in tail else THINK_START
    _, found, after = tail.rpartition(mark)
    return found + after if found else ""


def lead_to_answer(text: str, turns: Turns | None, *, thinks: bool, opens: bool) -> tuple[str, bool]:
    """What must stand after ``text`` before the model can answer, and whether nothing of its answer stands there yet.

    ``text`` is what the prompt has of the turn (`opened_by`) and the response so far. ``thinks``: whether this model ends
    thoughts with ``</think>`` at all; ``opens``: whether ``<think>`` is ever seen before, by the prompt's hand or its own.
    ``turns`` None: the text is one turn.

    >>> lead_to_answer("<think>\\n2 + 2", None, thinks=True, opens=True)
    ('\\n</think>\\n\\n', True)
    >>> chat = Turns("<|im_end|>\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n")
    >>> lead_to_answer("I ask. <tool_call>{", chat, thinks=False, opens=False)
    ('<|im_end|>\\n<|im_start|>assistant\\n', True)
    """
    said = text if turns is None else turns.said(text)
    if turns is not None and said is None:
        return _in_a_new_turn(text, turns.next_turn(text), turns, thinks=thinks, opens=opens)
    assert said is not None
    _, ended, answer = said.rpartition(THINK_END)
    if THINK_START in answer or (thinks and not (ended or opens)):
        return f"\n{THINK_END}\n\n"[text.endswith("\n") or not text :], True
    if turns is not None and waits_for_tool(answer):
        return _in_a_new_turn(text, turns.end + turns.header, turns, thinks=thinks, opens=opens)
    if thinks and not ended and not answer.strip():
        return EMPTY_THOUGHT, True
    return "", not said.strip()


def _in_a_new_turn(text: str, lead: str, turns: Turns, *, thinks: bool, opens: bool) -> tuple[str, bool]:
    """The same after the start of a new turn, whose header may open a thought."""
    return lead + lead_to_answer(text + lead, turns, thinks=thinks, opens=opens)[0], True
