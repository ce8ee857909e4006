"""Post-import hooks, on throw-away modules in a temporary directory."""

from __future__ import annotations

import importlib
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rredcot_plugin.integrations import lazy

Writer = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """Write a module of the given dotted name; all of them vanish after the test."""
    names: list[str] = []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lazy, "_finder", lazy._PostImportFinder())
    meta_path = list(sys.meta_path)

    def write_module(name: str, source: str) -> None:
        path = tmp_path.joinpath(*name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(textwrap.dedent(source))
        names.append(name)
        importlib.invalidate_caches()

    write_module("journal", "entries = []")
    yield write_module
    sys.meta_path[:] = meta_path
    for written in names:
        sys.modules.pop(written, None)
        sys.modules.pop(written.split(".")[0], None)


def note(entry: str) -> str:
    return f"import journal; journal.entries.append({entry!r})"


def entries() -> list[str]:
    return list(importlib.import_module("journal").entries)


def test_runs_after_the_module_and_before_its_importer_goes_on(write: Writer) -> None:
    write("host", note("host") + "\nvalue = 1")
    write("ours", "import host; host.value += 1")
    write("importer", "from host import value")
    lazy.install({"host": "ours"})
    assert "ours" not in sys.modules
    assert importlib.import_module("importer").value == 2
    assert entries() == ["host"]


def test_submodule_of_a_package_is_hooked_without_importing_it(write: Writer) -> None:
    write("pkg.__init__", "")
    write("pkg.sub", note("sub"))
    write("ours", note("ours"))
    lazy.install({"pkg.sub": "ours"})
    importlib.import_module("pkg")
    assert entries() == []
    importlib.import_module("pkg.sub")
    assert entries() == ["sub", "ours"]


def test_several_registrations_and_installs_compose_in_order(write: Writer) -> None:
    write("host", note("host"))
    for name in ("a", "b", "c", "d"):
        write(name, note(name))
    lazy.install({"host": ["b", "c"]})
    lazy.install({"host": "d"})
    lazy.install({"host": "a"}, before_others=True)
    importlib.import_module("host")
    assert entries() == ["host", "a", "b", "c", "d"]
    assert sys.meta_path.count(lazy._finder) == 1


def test_already_imported_module_registers_at_once(write: Writer) -> None:
    write("host", note("host"))
    write("ours", note("ours"))
    importlib.import_module("host")
    lazy.install({"host": "ours"})
    assert entries() == ["host", "ours"]


def test_a_registration_may_install_another(write: Writer) -> None:
    write("host", note("host"))
    write(
        "first", note("first") + "\nfrom rredcot_plugin.integrations import lazy; lazy.install({'host': 'second'})"
    )
    write("second", note("second"))
    lazy.install({"host": "first"})
    importlib.import_module("host")
    assert entries() == ["host", "first", "second"]


def test_install_while_the_module_is_being_executed(write: Writer) -> None:
    source = "from rredcot_plugin.integrations import lazy; lazy.install({'host': 'late'})\n" + note("host")
    write("host", source)
    write("early", note("early"))
    write("late", note("late"))
    lazy.install({"host": "early"})
    importlib.import_module("host")
    assert entries() == ["host", "early", "late"]


def test_half_imported_module_without_hooks_is_refused(write: Writer) -> None:
    write("host", "from rredcot_plugin.integrations import lazy; lazy.install({'host': 'ours'})")
    write("ours", note("ours"))
    with pytest.raises(RuntimeError, match="host is being imported right now"):
        importlib.import_module("host")


def test_failing_registration_is_logged_and_raised(write: Writer, caplog: pytest.LogCaptureFixture) -> None:
    write("host", "")
    write("ours", "raise KeyError('the cause')")
    lazy.install({"host": "ours"})
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="the cause"):
        importlib.import_module("host")
    assert "registration ours, due after the import of host, failed" in caplog.text
    assert "the cause" in caplog.text


def test_failed_host_import_keeps_the_hook_for_the_next_try(write: Writer) -> None:
    write("host", "raise ImportError('not yet')")
    write("ours", note("ours"))
    lazy.install({"host": "ours"})
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("host")
    write("host", "value = 'a longer source, so that the stale bytecode is not used'")
    importlib.import_module("host")
    assert entries() == ["ours"]


def test_unknown_module_still_raises_module_not_found(write: Writer) -> None:
    lazy.install({"no_such_module_of_ours": "ours"})
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):
        importlib.import_module("no_such_module_of_ours")
