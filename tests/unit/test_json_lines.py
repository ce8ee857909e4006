"""Files that are not JSON lines: what is said of them, and the way out."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rredcot_plugin.offline.json_lines import read_lines
from rredcot_plugin.report.read_corpus import read_corpus


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b"{}", mtime=0), r"`gzip -dc` unpacks it"),
        (b"PAR1\x15\x04\x15", r"got Parquet: pandas\.read_parquet"),
        (b'{\n "prompt": "a"\n}\n', r"is it written over several lines\? `jq -c \.`"),
        (b"prompt,response\n", r"at character 1; expected one object per line"),
        (b'{"prompt": "a', r"is the file truncated\?"),
        (
            b'{"prompt": "a", "response": "b", "reward": 1' + b"0" * 400 + b"}",
            r"reward: expected a number, got 10",
        ),
        (b'{"a":' * 100_000, "line 1: nested too deeply"),
    ],
)
def test_files_that_are_no_json_lines_are_told_with_the_way_out(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read_corpus([tmp_path / "x.jsonl"])


def test_a_device_is_no_missing_file() -> None:
    with pytest.raises(ValueError, match=r"/dev/null: .* got a pipe or a device, which cannot be read twice"):
        read_corpus([Path("/dev/null")])
    with pytest.raises(ValueError, match=r"/dev/null: .* got a pipe or a device, which cannot be read twice"):
        read_lines(Path("/dev/null"), lambda number, record: record)
