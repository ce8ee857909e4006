"""The commands of the page about `rredcot explain`."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_explain import run


def test_the_pages_examples_without_a_script_are_configurations() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/explain.md").read_text(encoding="utf-8")
    lines = [
        line.partition("#")[0].split()[2:] for line in page.splitlines() if line.startswith("rredcot explain ")
    ]
    without = [words for words in lines if not words[0].endswith(".sh")]
    assert len(without) >= 2
    for words in without:
        result = run(*words)
        assert result.exit_code == 0, (words, result.output)
