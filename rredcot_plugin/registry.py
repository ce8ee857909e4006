"""One registry mechanism for segmenters, value estimators, baselines and shapers.

An entry is a class or factory that takes the options as keywords and returns a callable. Users add one
by decorator, by dotted path (``"pkg.module:Name"``) or by file (``{"path": "file.py", "name": "Name"}``,
verl's custom_cls form); the last two need no import beforehand, so they work in every Ray process.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Factory = Callable[..., Any]

OWN = "'pkg.module:Name' or {path: file.py, name: Name}"
"""How a user gives an entry that is not registered."""


def nearest(name: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` for the closest known name, or nothing."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""


def check_number(key: str, value: Any, low: float, high: float = float("inf")) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number in [low, high]."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != float("inf")
    if not is_number or not low <= value <= high:
        above = f"from {low:g}" + ("" if high == float("inf") else f" to {high:g}")
        raise ValueError(f"{key}={value!r}: expected a number {above}")


def check_count(key: str, value: int) -> None:
    """Raise ``ValueError`` unless ``value`` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value!r}: expected a positive integer")


class Registry:
    """Names to factories, with errors that say what exists.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... def square(side=1):
    ...     return lambda: side * side
    >>> shapes.get("square", side=3)()
    9
    >>> shapes.get("sqare")
    Traceback (most recent call last):
    ValueError: unknown shape 'sqare'. Did you mean 'square'? Known: square
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Factory] = {}

    def register(self, name: str, overwrite: bool = False) -> Callable[[Factory], Factory]:
        """Decorator that files a factory under ``name``; a taken name raises unless ``overwrite``."""
        # without parentheses the class itself comes as the name
        if not isinstance(name, str) or not name or ":" in name:
            usage = f'@rr.register_{self.kind.replace(" ", "_")}("name")'
            raise ValueError(f"name of a {self.kind}: expected a text without ':', got {name!r}; write {usage}")

        def decorator(factory: Factory) -> Factory:
            if not callable(factory):
                raise ValueError(f"{self.kind} {name!r}: expected a class or function, got {factory!r}")
            if name in self._factories and not overwrite:
                raise ValueError(
                    f"{self.kind} {name!r} is already registered to {self._factories[name]!r}; "
                    "pass overwrite=True to replace it"
                )
            self._factories[name] = factory
            return factory

        return decorator

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._factories)

    def factory(self, name_or_path: str | Mapping[str, Any]) -> Factory:
        """The factory behind a registered name, a dotted path or a file.

        Raises:
            ValueError: nothing of that name; the message lists what exists and the nearest match.
        """
        if isinstance(name_or_path, Mapping):
            return self._from_file(name_or_path)
        if not isinstance(name_or_path, str):
            raise ValueError(f"{self.kind}: expected a name, {OWN}, got {name_or_path!r}")
        if name_or_path in self._factories:
            return self._factories[name_or_path]
        if ":" in name_or_path:
            return self._from_module(name_or_path)
        known = self.names()
        way_out = f". One of your own is given as {OWN}" if {".", "/"} & set(name_or_path) else ""
        raise ValueError(
            f"unknown {self.kind} {name_or_path!r}.{nearest(name_or_path, known)} Known: {', '.join(known)}{way_out}"
        )

    def get(self, name_or_path: str | Mapping[str, Any], **options: Any) -> Any:
        """Build an entry with its options.

        Raises:
            ValueError: an unknown name, or options that the entry does not take.
        """
        factory = self.factory(name_or_path)
        try:
            return factory(**options)
        except TypeError as error:
            self._check_options(factory, name_or_path, options)
            way_out = ""
            if inspect.isfunction(factory):
                way_out = (
                    f"; what is registered takes the options alone and returns the {self.kind}, as a class does"
                )
            raise ValueError(f"{self.kind} {name_or_path!r} with options {options}: {error}{way_out}") from error

    def _check_options(self, factory: Factory, name: str | Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for an option that the entry does not know, with the nearest one, or the entries that do."""
        known = _options_of(factory)
        unknown = next((option for option in options if known is not None and option not in known), None)
        if known is None or unknown is None:
            return
        hint = nearest(str(unknown), known)
        others = [other for other, entry in self._factories.items() if unknown in (_options_of(entry) or ())]
        raise ValueError(
            f"{self.kind} {name!r}: unknown option {unknown!r}.{hint} Known: {', '.join(known) or 'none'}"
            + (f". It is one of {', '.join(sorted(others))}: leave it out" if others and not hint else "")
        )

    def _from_module(self, path: str) -> Factory:
        module_name, _, attribute = path.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            is_file = module_name.endswith(".py") or "/" in module_name
            way_out = f"; a file is given as {{path: {module_name}, name: {attribute}}}" if is_file else ""
            raise ValueError(
                f"{self.kind} {path!r}: module {module_name!r} cannot be imported: {error}{way_out}"
            ) from error
        return self._attribute(module, attribute, path)

    def _from_file(self, entry: Mapping[str, Any]) -> Factory:
        unknown = set(entry) - {"path", "name"}
        if unknown or "path" not in entry or "name" not in entry:
            raise ValueError(f"{self.kind} given as a file: expected keys 'path' and 'name', got {sorted(entry)}")
        path = Path(str(entry["path"])).expanduser()
        if not path.is_file():
            raise ValueError(f"{self.kind} file {str(path)!r}: no such file")
        return self._attribute(self._module_of(path), str(entry["name"]), str(path))

    def _module_of(self, path: Path) -> Any:
        """The file as a module, executed once a process."""
        name = f"rredcot_custom_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{self.kind} file {str(path)!r}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _attribute(self, module: Any, attribute: str, path: str) -> Factory:
        factory = getattr(module, attribute, None)
        if not callable(factory):
            hint = nearest(attribute, [name for name, found in vars(module).items() if callable(found)])
            raise ValueError(
                f"{self.kind} {path!r}: expected a class or function {attribute!r}, got {factory!r}.{hint}"
            )
        return factory  # type: ignore[no-any-return]


SEGMENTERS = Registry("segmenter")
VALUE_ESTIMATORS = Registry("value estimator")
BASELINES = Registry("baseline")
SHAPERS = Registry("shaper")

register_segmenter = SEGMENTERS.register
register_value_estimator = VALUE_ESTIMATORS.register
register_baseline = BASELINES.register
register_shaper = SHAPERS.register
list_segmenters = SEGMENTERS.names
list_value_estimators = VALUE_ESTIMATORS.names
list_baselines = BASELINES.names
list_shapers = SHAPERS.names
get_segmenter = SEGMENTERS.get
get_value_estimator = VALUE_ESTIMATORS.get
get_baseline = BASELINES.get
get_shaper = SHAPERS.get


def _options_of(factory: Callable[..., Any]) -> list[str] | None:
    """Names of the options that an entry takes; None where it takes any, or does not say."""
    try:
        takes = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of a class written in C
        return None
    if any(one.kind is one.VAR_KEYWORD for one in takes):
        return None
    return [one.name for one in takes if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]


def first_paragraph(factory: Callable[..., Any]) -> str:
    """First paragraph of the docstring, in one line and with its Markdown; empty if there is none."""
    paragraph = (inspect.getdoc(factory) or "").split("\n\n", 1)[0]
    return " ".join(paragraph.split()).replace("``", "`")


def first_sentence(factory: Callable[..., Any]) -> str:
    """The first sentence of that, without Markdown."""
    return re.split(r"(?<=[.?]) (?=[A-Z0-9])", first_paragraph(factory), maxsplit=1)[0].replace("`", "")
