"""Post-import hooks: run a registration module right after a host module has been imported.

A plugin is imported in *every* process of its host, so it must not pull in the heavy modules that it extends.
`install({"host.module": "our.registration"})` postpones the import of `our.registration` to the moment when
`host.module` has just been executed and before its importer continues: nobody can observe the host module
without our additions. Hooks of one module run in the order in which they were installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Iterable, Mapping, Sequence

logger = logging.getLogger(__name__)


class _PostImportFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the other finders search and appends our hooks to what they found."""

    def __init__(self) -> None:
        self.pending: dict[str, list[str]] = {}
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.pending or fullname in self._searching:
            return None
        self._searching.add(fullname)  # the search below asks this finder again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            self._hook(fullname, spec.loader)
        return spec

    def _hook(self, fullname: str, loader: importlib.abc.Loader) -> None:
        # The attribute is set on this one loader object, which serves this one module: its class, and with it
        # everything that asks the loader for sources or resources, stays what it was.
        execute = loader.exec_module

        def execute_then_register(module: types.ModuleType) -> None:
            execute(module)
            queue = self.pending[fullname]  # stays registered meanwhile: a hook may install() another one
            try:
                while queue:
                    _run(fullname, queue.pop(0))
            finally:
                del self.pending[fullname]

        loader.exec_module = execute_then_register  # type: ignore[method-assign]


_finder = _PostImportFinder()


def install(hooks: Mapping[str, str | Iterable[str]], *, before_others: bool = False) -> None:
    """Import `hooks[name]` (one registration module or several) as soon as module `name` has been imported.

    Modules that are already imported get their registrations at once. Several calls compose in order;
    `before_others=True` puts these registrations ahead of the ones still waiting for the same module.

    Raises:
        RuntimeError: module `name` is half imported, so there is no moment left to hook.
        Exception: whatever a registration raises, logged at ERROR first because hosts tend to swallow it.
    """
    for name, registrations in hooks.items():
        modules = [registrations] if isinstance(registrations, str) else list(registrations)
        if name not in sys.modules:
            waiting = _finder.pending.get(name, [])
            _finder.pending[name] = [*modules, *waiting] if before_others else [*waiting, *modules]
        elif name in _finder.pending:  # being executed, or its hooks are running: these come next
            _finder.pending[name].extend(modules)
        elif getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False):
            raise RuntimeError(f"{name} is being imported right now; hook one of its submodules instead of {name}")
        else:
            for module in modules:
                _run(name, module)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _run(name: str, registration: str) -> None:
    try:
        importlib.import_module(registration)
    except Exception:
        logger.exception("registration %s, due after the import of %s, failed", registration, name)
        raise
