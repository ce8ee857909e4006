"""The text that a model was given, from chat messages or from a dump that lost the template's special tokens.

verl's `trainer.rollout_data_dir` decodes prompts with `skip_special_tokens=True`: "<|im_start|>user\\n1 + 1 =<|im_end|>"
reads "user\\n1 + 1 =" there. Where the model's own chat template makes exactly that text, the marks are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rredcot_plugin.offline.input_columns import Row

HOW = ("auto", "text", "user")
MARK = "QZ{}ZQ"
"""Stands for a message while the frame of a template is read off."""


@dataclass
class PromptWriter:
    """Writes prompts for one tokenizer.

    ``how`` says what a text is: ``text``: what the model was given, as it is; ``user``: one user message;
    ``auto``: as ``text``, but prompts of verl's dumps get their special tokens back where that is certain.
    """

    tokenizer: Any
    how: str = "auto"

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise ValueError(f"prompts={self.how!r}: expected one of {', '.join(HOW)}")

    def write(self, row: Row) -> tuple[str, bool]:
        """Text of the prompt, and whether the chat template made it.

        Raises:
            ValueError: messages, and a tokenizer without a chat template, or one that refuses them.
        """
        if not isinstance(row.prompt, str):
            return self._template(row.prompt), True
        if self.how == "user":
            return self._template([{"role": "user", "content": row.prompt}]), True
        restored = self._restore(row.prompt) if self.how == "auto" and row.from_verl else None
        return (row.prompt, False) if restored is None else (restored, True)

    def _template(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                f"the prompt is a list of messages, and the tokenizer of {self.tokenizer.name_or_path!r} has no chat "
                "template: give one with --chat-template FILE, or write the prompts as the text that the model was given"
            )
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            raise ValueError(f"the chat template refuses the prompt: {error}") from error
        return str(text)

    def _restore(self, stripped: str) -> str | None:
        """The templated text that reads ``stripped`` without special tokens; None if no frame fits."""
        for frame in self._frames:
            contents = frame.contents(stripped)
            if contents is None:
                continue
            text = self._template(frame.messages(contents))
            if self._without_specials(text) == stripped:
                return text
        return None

    @cached_property
    def _frames(self) -> list[Frame]:
        if not getattr(self.tokenizer, "chat_template", None):
            return []
        found = []
        for roles in (("user",), ("system", "user")):
            try:
                found.append(Frame.read(roles, self._template, self._without_specials))
            except ValueError:  # a template may refuse system messages
                continue
        return found

    def _without_specials(self, text: str) -> str:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@dataclass(frozen=True)
class Frame:
    """What a chat template writes around messages of these roles, without special tokens."""

    roles: tuple[str, ...]
    around: tuple[str, ...]

    @classmethod
    def read(cls, roles: tuple[str, ...], template: Callable[..., str], strip: Callable[[str], str]) -> Frame:
        """Put marks through the template; ValueError where they do not come out as they went in."""
        marks = [MARK.format(i) for i in range(len(roles))]
        rest = strip(template([{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)]))
        around = []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                raise ValueError(f"the chat template does not write the content of {roles}")
            around.append(before)
        return cls(roles, (*around, rest))

    def contents(self, text: str) -> list[str] | None:
        """The messages of a text in this frame; None if it is not in it."""
        first, *between, last = self.around
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        rest, found = text[len(first) : len(text) - len(last)], []
        for part in between:
            content, met, rest = rest.partition(part)
            if not met or not part:
                return None
            found.append(content)
        return [*found, rest]

    def messages(self, contents: Sequence[str]) -> list[dict[str, str]]:
        return [{"role": r, "content": c} for r, c in zip(self.roles, contents, strict=True)]
