"""Change the default value of a parameter of a host function in place."""

from __future__ import annotations

from typing import Any


def set_default(function: Any, parameter: str, value: Any) -> None:
    """Give `parameter` of `function` another default; callers that pass it are unaffected.

    Raises ValueError if the function has no such positional parameter with a default: the host has changed.

    >>> def area(width, height=1): return width * height
    >>> set_default(area, "height", 3); area(2), area(2, 5)
    (6, 10)
    """
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    with_default = positional[len(positional) - len(defaults) :]
    if parameter not in with_default:
        raise ValueError(
            f"{function.__qualname__} has no parameter {parameter!r} with a default, only {with_default}"
        )
    index = with_default.index(parameter)
    function.__defaults__ = (*defaults[:index], value, *defaults[index + 1 :])
