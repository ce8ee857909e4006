"""Small and large numbers in a report: none that is not 0 reads 0, and no label leaves its picture."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from rredcot_plugin.report.read_corpus import read_corpus
from rredcot_plugin.report.report_page import render_report
from rredcot_plugin.report.svg import CHARACTER, LEFT, Plot, axis
from rredcot_plugin.report.terminal import LONGEST_TEXT
from tests.unit.corpus_lines import trace, write
from tests.unit.report_runs import run

SMALL = 1e-6
LABEL = re.compile(r'<text x="([\d.−-]+)" y="([\d.]+)" text-anchor="(end|middle)">([^<]*)</text>')
END = re.compile(r'<text x="([\d.]+)" y="[\d.]+">(R=[^<]*)</text>')


def page_of(folder: Path, size: float) -> str:
    """Two steps of rewards and credits of this size."""
    lines = [
        trace([sign * 4 * size, -9 * size, 2 * size], prior=0.0, step=step, uid=uid, text=uid)
        for step in (1, 2)
        for uid, sign in (("a", 1), ("b", -1))
    ]
    return render_report(read_corpus([write(folder / "x.jsonl", lines)]))


def test_small_credits_read_as_numbers_everywhere(tmp_path: Path) -> None:
    page = page_of(tmp_path, SMALL)
    assert "−0.0000090<span" in page  # the legend
    assert '<span class="by-credit">−0.0000090</span>' in page
    assert "credit −0.0000090, advantage −0.000007; " in page
    assert "expected reward 0.0000040 before, −0.0000050 after" in page
    assert "reward −0.0000030<" in page
    assert "<td>−0.0000070</td>" in page  # the mean reward of a step
    assert "step 1: −0.0000070, 2 traces" in page
    assert "0.000 to 0.000" not in page
    assert "−0.000009 to −0.000008: 4" in page


def test_numbers_of_usual_size_keep_their_decimals(tmp_path: Path) -> None:
    page = page_of(tmp_path, 0.05)
    assert '<span class="by-credit">−0.45</span>' in page
    assert "credit −0.450, advantage −0.350; " in page
    assert "reward −0.15<" in page
    assert "step 1: −0.350, 2 traces" in page


def test_small_credits_in_the_terminal(tmp_path: Path) -> None:
    lines = [trace([4 * SMALL, -9 * SMALL], prior=0.0)]
    shown = run(write(tmp_path / "x.jsonl", lines), "--terminal").stdout
    assert re.search(r"−0\.0000090 +−0\.0000090 +█+ +−0\.0000050 +line 1", shown)
    assert "reward −0.0000050, step 1" in shown
    assert re.search(r"^1 +1 +−0\.0000050 ", shown, re.MULTILINE)
    assert "0.00 to 0.00" not in shown


@pytest.mark.parametrize("size", [SMALL, 1e-4, 1.0, 1e6])
def test_labels_stay_in_their_pictures(tmp_path: Path, size: float) -> None:
    page = page_of(tmp_path, size)
    labels = LABEL.findall(page)
    assert len(labels) > 40
    for x, _, anchor, text in labels:
        if anchor == "end":
            assert 6 * len(text) - 1 <= float(x), text
    ends = END.findall(page)
    assert len(ends) == 4
    for x, text in ends:
        assert float(x) + 6 * len(text) <= 320, text


def test_texts_under_an_axis_do_not_touch() -> None:
    plot = Plot(axis("credit", [-3e-5, 3e-5]), axis("reward", [-1.5e-5, 0]))
    assert plot.left > LEFT
    places = [float(x) for x, y, anchor, _ in LABEL.findall(plot.render("", "credit")) if anchor == "middle"]
    assert len(places) > 1
    longest = CHARACTER * max(len(text) for _, text in plot.across.texts())
    assert all(right - left > longest for left, right in pairwise(places))
    few = Plot(axis("credit", [0, 1]), axis("count", [0, 1]))
    assert few.left == LEFT
    assert len(LABEL.findall(few.render("", "credit"))) == len(few.across.ticks) + len(few.up.ticks)


def test_the_terminal_cuts_long_texts_and_says_where_nothing_was_lost(tmp_path: Path) -> None:
    long = trace([-0.2], text="x" * 50_000, prompt="y" * 9_000)
    shown = run(write(tmp_path / "x.jsonl", [{**long, "ground_truth": "z" * 9_000}]), "--terminal").stdout
    assert f"({50_002:,} characters)" in shown
    assert LONGEST_TEXT // 2 - 2 <= shown.count("x") - 3 <= LONGEST_TEXT  # three in other words
    assert shown.count("y") < 400 and shown.count("z") < 400
    shown = run(write(tmp_path / "x.jsonl", [trace([0.2])]), "--terminal").stdout
    assert "No segment lost reward." in shown
    assert "Segments that lost" not in shown


def test_a_page_that_cannot_be_written_names_the_option(tmp_path: Path) -> None:
    rollouts = write(tmp_path / "x.jsonl", [trace([0.2])])
    (tmp_path / "file").write_text("")
    result = run(rollouts, "-o", tmp_path / "file" / "page.html", "--step", "1")
    assert result.exit_code == 1
    assert f"out={tmp_path / 'file' / 'page.html'}: cannot be written: " in result.stderr
    assert result.stderr.strip().endswith("use another place with --out")
