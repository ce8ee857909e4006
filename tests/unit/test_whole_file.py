"""Nobody meets half a file: it is there in one move, or as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rredcot_plugin.adapter.whole_file import whole_file


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with whole_file(path) as part:
        part.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("stop", [OSError("disk full"), ValueError("no JSON"), KeyboardInterrupt()])
def test_what_fails_on_the_way_changes_nothing(tmp_path: Path, stop: BaseException) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(type(stop)):
        _write_half(path, stop)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(path: Path, stop: BaseException) -> None:
    with whole_file(path) as part:
        part.write_text("half")
        raise stop


def test_a_folder_in_its_place_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.mkdir()
    with pytest.raises(IsADirectoryError), whole_file(path) as part:
        part.write_text("after")
    assert list(tmp_path.iterdir()) == [path] and path.is_dir()
