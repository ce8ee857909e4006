"""benchmarks/README.md: every committed result is there, with the command that makes it and the page that shows it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contents
from quick_checks.committed import Committed, command_of

COMMITTED = Committed(contents.FOLDER / "results")
DOCS = contents.FOLDER.parent / "docs"
ENTRIES = {name: entry for group in contents.GROUPS.values() for name, entry in group.items()}
TEXT = contents.PAGE.read_text()


def test_every_committed_result_is_in_one_group() -> None:
    assert sorted(name for group in contents.GROUPS.values() for name in group) == COMMITTED.names()


def test_the_page_is_what_would_be_written() -> None:
    assert contents.filled(TEXT, COMMITTED) == TEXT, "write it again: python benchmarks/contents.py"


def test_a_changed_command_is_seen() -> None:
    changed = TEXT.replace("`make bench-overhead` |", "`make bench-overheads` |")
    assert changed != TEXT and contents.filled(changed, COMMITTED) == TEXT


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="end of cost"):
        contents.filled(TEXT.replace("<!-- end of cost -->", ""), COMMITTED)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_page_of_a_result_tells_where_its_numbers_come_from(name: str) -> None:
    page = ENTRIES[name].page
    if page is None:
        return
    words = command_of(name).split()
    script = next((word for word in words if word.endswith(".py")), None)
    told = (f"{name}.json", script or f"make {words[1]}", f"<!-- {name}: ")
    assert any(word in (DOCS / f"{page}.md").read_text() for word in told), told


def test_times_are_those_of_the_files() -> None:
    seconds = COMMITTED.record("fidelity")["settings"]["cpu_seconds"]  # type: ignore[index]
    assert contents.recorded_time("fidelity", COMMITTED) == f"{seconds / 60:.0f} min"
    assert re.fullmatch(r"[0-9.]+ h in [0-9]+ runs", contents.recorded_time("learning", COMMITTED))
    assert contents.recorded_time("driver", COMMITTED) == "–"


def test_every_script_and_folder_is_named_and_every_link_leads_somewhere() -> None:
    for path in contents.FOLDER.iterdir():
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"):
            assert path.name in TEXT or path.stem in ENTRIES, path.name
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (contents.FOLDER / target).exists(), target


def test_no_recorded_command_names_a_folder_of_one_machine() -> None:
    commands = {name: str((COMMITTED.record(name) or {}).get("command", "")) for name in COMMITTED.names()}
    assert not {name: command for name, command in commands.items() if re.search(r"(?:^|[\s=])[/~]", command)}
