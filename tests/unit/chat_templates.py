"""Chat templates of every kind that a probe's question must fit into, with tokenizers that have them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from rredcot_plugin.tiny.reasoner import build_tokenizer
from tests.unit.recipe_scripts import RECIPES

CALLED = "{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call | tojson }}\n</tool_call>{% endfor %}"
HERMES = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}" + CALLED + "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Tools speak in a user's turn."""

THINKS = HERMES.replace(
    "{{ m.role }}\n",
    "{{ m.role }}\n{% if loop.last and m.role == 'assistant' and '</think>' not in m.content %}"
    "<think>\n\n</think>\n\n{% endif %}",
)
"""The same of a model that opens its thoughts itself: the last answer has one, an empty one if need be."""

SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}" + HERMES
"""A system message stands before all others, as SmolLM2 has one."""

OPENED = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}" + CALLED + "<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
"""The header opens a thought, a user's turn has no end of its own, and there are no line ends between turns."""


@dataclass(frozen=True)
class Chat:
    """``lead`` is how a turn is closed and the next one opened; ``thought``, what an answer of a thinking model begins with."""

    tokenizer: Any
    lead: str = "<|im_end|>\n<|im_start|>assistant\n"
    thought: str = ""

    def render(self, *messages: dict[str, Any], opened: bool = False) -> str:
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=opened, tokenize=False)


def with_template(template: str) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def tool_user() -> Any:
    """The tiny tool user's, of the recipe."""
    spec = importlib.util.spec_from_file_location("tool_dialogue", RECIPES / "agent" / "tool_dialogue.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_tokenizer()


CHATS: dict[str, Callable[[], Chat]] = {
    "reasoner": lambda: Chat(build_tokenizer()),
    "tool_user": lambda: Chat(tool_user()),
    "system": lambda: Chat(with_template(SYSTEM)),
    "hermes": lambda: Chat(with_template(HERMES)),
    "thinks": lambda: Chat(with_template(THINKS), thought="<think>\n\n</think>\n\n"),
    "opened": lambda: Chat(with_template(OPENED), "<|end|><|assistant|>", "<think>\n</think>\n\n"),
}


@cache
def chat_of(name: str) -> Chat:
    return CHATS[name]()
