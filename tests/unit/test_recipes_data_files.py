"""What the recipes read from files: rows as they stand there, or an error that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.recipe_scripts import RECIPES, load

data_files = load(RECIPES / "data_files.py", "data_files_alone")
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"a": "é"}\n'.encode("latin-1"), "not in UTF-8"),
        ("a.json", '[{"a": "é"}]'.encode("latin-1"), "not in UTF-8"),
        ("a.csv", "a\né\n".encode("latin-1"), "not in UTF-8"),
        ("a.csv", b"", "empty, expected a first line"),
        ("a.csv", b'a,b\n1,"2\n', "cannot be read as .csv: unexpected end"),
        ("a.csv", b"question,answer\none,1\ntwo,1,000\n", "line 3: more cells than columns"),
        ("a.parquet", b"", "cannot be read as .parquet"),
        ("a.parquet", b"PAR1 and no more PAR1", "cannot be read as .parquet"),
        ("a.jsonl", b'{"a": 1}\n{"a": ["\\uD800"]}\n', "line 2: .*pairs only"),
        ("a.json", b'[{"a": "\\udfff"}]', "pairs only"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_broken_file_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(data_files.DataError, match=f"{name}.*{message}"):
        data_files.read_file(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", BOM + b'{"q": "x", "a": "\\ud83d\\ude00"}\n'),
        ("a.json", BOM + '[{"q": "x", "a": "😀"}]'.encode()),
        ("a.csv", BOM + "q,a\nx,😀\n".encode()),
        ("a.csv", "q,a\nx,😀,\n".encode()),
    ],
)
def test_marks_and_last_commas_do_no_harm(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert [row for _, row in data_files.read_file(tmp_path / name)] == [{"q": "x", "a": "😀"}]


def test_cells_of_a_csv_are_texts_and_may_be_long(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'q,a\n"{"x" * 200_000}\ny",007\n\nNA\n')
    rows = [row for _, row in data_files.read_file(tmp_path / "a.csv")]
    assert rows == [{"q": "x" * 200_000 + "\ny", "a": "007"}, {"q": "NA", "a": ""}]
