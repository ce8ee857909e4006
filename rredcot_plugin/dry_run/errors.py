"""What is wrong with a recipe, in one line."""

from __future__ import annotations


class RecipeError(Exception):
    """Something about a recipe that its author can put right; the message is one line and names what and where."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """The lines of a message in one, without empty ones.

    >>> one_line("Could not override 'a.b'.\\n\\n  Key 'b' is not in struct\\n")
    "Could not override 'a.b'. Key 'b' is not in struct"
    """
    return " ".join(line.strip() for line in str(text).splitlines() if line.strip())
