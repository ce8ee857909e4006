"""The overhead benchmark at tiny sizes: real passes, cells that survive a stop, the floor in the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import overhead
import overhead_tables as tables
from cells import fill_cells, load_cells
from probe_passes import ProbeSizes, make_passes, rotated, time_round

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLAN = overhead.Plan((32, 64), (2,), (3,), (64, 2, 3), 2, 2, 32, (2, 4), 16, 2)


@pytest.fixture(scope="module")
def cells() -> dict[str, dict[str, Any]]:
    """Every timed cell of the tiny plan, measured."""
    wanted = {
        key: measure for key, measure in overhead.wanted_cells(PLAN, 1).items() if not key.startswith("memory")
    }
    return fill_cells(None, wanted, overhead.REQUIRED)


def never() -> NoReturn:
    raise AssertionError("this cell is there already")


def one_cell(calls: list[str], name: str) -> Callable[[], dict[str, Any]]:
    def measure() -> dict[str, Any]:
        calls.append(name)
        return {"kind": "time", "value": len(calls)}

    return measure


def test_a_stopped_benchmark_goes_on_with_the_missing_cells(tmp_path: Path) -> None:
    def stop() -> NoReturn:
        raise KeyboardInterrupt

    file, calls = tmp_path / "r.json", []
    with pytest.raises(KeyboardInterrupt):
        fill_cells(file, {"a": one_cell(calls, "a"), "b": stop}, ["kind"])
    found = fill_cells(file, {"a": never, "b": one_cell(calls, "b")}, ["kind"])
    assert calls == ["a", "b"] and list(found) == ["a", "b"] and found["a"]["value"] == 1
    assert load_cells(file, ["kind"]) == found


def test_force_measures_again_and_time_up_leaves_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, calls = tmp_path / "r.json", []
    wanted = {"a": one_cell(calls, "a"), "b": one_cell(calls, "b")}
    fill_cells(file, wanted, ["kind"])
    found = fill_cells(file, wanted, ["kind"], force=True, may_start=lambda: len(calls) < 3)
    assert calls == ["a", "b", "a"] and list(found) == ["a"]
    assert "1 cells are left" in capsys.readouterr().out
    assert set(load_cells(file, ["kind"])) == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"raw": 1}', '{"raw": {"cells": [1]}}', '{"raw": {"cells": {"a": 1}}}']
)
def test_a_corrupted_file_is_named_and_measured_again(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, calls = tmp_path / "r.json", []
    file.write_text(text)
    fill_cells(file, {"a": one_cell(calls, "a")}, ["kind"])
    out = capsys.readouterr().out
    assert str(file) in out and "r.json.corrupt" in out and calls == ["a"]
    assert (tmp_path / "r.json.corrupt").read_text() == text
    assert list(load_cells(file, ["kind"])) == ["a"]


def test_a_damaged_cell_is_named_and_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, calls = tmp_path / "r.json", []
    file.write_text(json.dumps({"raw": {"cells": {"a": {"kind": "time"}, "b": {}}}}))
    fill_cells(file, {"a": never, "b": one_cell(calls, "b")}, ["kind"])
    out = capsys.readouterr().out
    assert str(file) in out and "'b'" in out and calls == ["b"]


def test_every_backend_is_timed_and_the_groups_are_whole(cells: dict[str, dict[str, Any]]) -> None:
    timed = tables.of_kind(list(cells.values()), "time")
    assert [sorted(cell["seconds"]["wall"]) for cell in timed] == [
        ["batched", "cached", "packed", "plain"],
        ["cached", "packed", "plain"],
    ]
    groups = tables.of_kind(list(cells.values()), "group")
    assert [(cell["traces"], cell["probes"]) for cell in groups] == [(2, 4), (4, 8)]
    assert all(len(values) == 2 for cell in groups for values in cell["seconds"]["cpu"].values())


def test_a_wrong_log_prob_stops_the_benchmark() -> None:
    passes = make_passes(ProbeSizes(32, 2, 3, traces=2), overhead.shared_model())
    with torch.no_grad():
        expected = passes["batched"]()
    assert expected is not None and expected.shape == (4,)
    time_round(passes, ["packed", "cached"], expected)
    with pytest.raises(AssertionError):
        time_round(passes, ["cached"], expected + torch.tensor([0.0, 0.0, 0.01, 0.0]))


def test_the_table_has_the_floor_beside_the_ratios(cells: dict[str, dict[str, Any]]) -> None:
    rows = [line.split(" | ") for line in tables.make_tables(list(cells.values())).splitlines()]
    head, row = rows[0], rows[2]
    assert head[4:6] == ["floor", "cached"]
    assert row[0] == "| 32" and row[4] == f"{(32 + 2 * 3) / 32:.2f}"
    ratio = float(row[5].split(" ")[0])
    assert float(row[8].split(" ")[0]) == pytest.approx(ratio / 1.1875, abs=0.011)


def test_the_summary_has_the_headline_and_the_exponents(cells: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    memory = [
        {"kind": "memory", "tokens": t, "probes": 2, "probe_tokens": 3, "mib": {"plain": t / 8, "cached": t / 4}}
        for t in (32, 64, 128)
    ]
    summary = tables.summarize([*cells.values(), *memory], PLAN.main)
    wanted = {"probe_overhead_vs_floor", "exponent_tokens", "exponent_group", "exponent_memory"}
    assert wanted <= summary.keys()
    assert all(entry["low"] <= entry["value"] + 1e-9 for entry in summary.values())
    assert all(entry["value"] <= entry["high"] + 1e-9 for entry in summary.values())
    assert summary["exponent_memory"]["value"] == pytest.approx(1.0)
    headline = next(cell for cell in cells.values() if (cell["tokens"], cell["traces"]) == (64, 1))
    cached, plain = headline["seconds"]["wall"]["cached"], headline["seconds"]["wall"]["plain"]
    expected = sum(c / p for c, p in zip(cached, plain, strict=True)) / 2 / headline["floor"]
    assert summary["probe_overhead_vs_floor"]["value"] == pytest.approx(expected)
    tables.draw_picture(list(cells.values()), PLAN.main, tmp_path / "p" / "o.png")
    assert (tmp_path / "p" / "o.png").read_bytes().startswith(b"\x89PNG")


def test_an_exponent_is_found_with_its_interval() -> None:
    cells = [
        {"tokens": t, "seconds": {"wall": {"cached": [0.9 * t**1.5, t**1.5, 1.1 * t**1.5]}}} for t in (8, 16, 64)
    ]
    found = tables.fitted_exponent(cells, "tokens", "cached")
    assert found["value"] == pytest.approx(1.5) and found["low"] < 1.5 < found["high"]


def test_the_share_of_a_step_is_quoted_and_a_bad_file_is_named(tmp_path: Path) -> None:
    share, source = tables.read_step_share(BENCHMARKS / "results" / "step_share.json")
    assert 0 < share["low"] <= share["value"] <= share["high"] < 1 and "step_share.json" in source
    bad = tmp_path / "s.json"
    bad.write_text('{"summary": {}}')
    with pytest.raises(ValueError, match=r"s\.json: no step_share here .* measure it: rredcot demo"):
        tables.read_step_share(bad)


def test_the_page_gets_its_tables_and_keeps_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.MARKS[0]}\nold\n{tables.MARKS[1]}\nafter\n")
    tables.fill_page(page, "| new |")
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "| new |" in text and "old" not in text
    tables.fill_page(page, "| newer |")
    assert "| new |" not in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"page\.md: no line '<!-- overhead"):
        tables.fill_page(page, "")
    real = (BENCHMARKS.parent / "docs" / "evidence" / "overhead.md").read_text()
    assert real.index(tables.MARKS[0]) < real.index(tables.MARKS[1])


def test_every_pass_has_every_place_in_a_round() -> None:
    names = ["plain", "cached", "packed"]
    assert sorted(zip(*(rotated(names, i) for i in range(3)), strict=True)) != []
    assert all(
        sorted(column) == sorted(names) for column in zip(*(rotated(names, i) for i in range(3)), strict=True)
    )


def test_memory_is_measured_in_a_fresh_process() -> None:
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), "--threads", "1", "--memory-worker"]
    grown = [
        float(subprocess.run([*command, *sizes], check=True, capture_output=True, text=True).stdout)
        for sizes in (["plain", "64", "2", "3"], ["plain", "1024", "2", "3"])
    ]
    assert 0 < grown[0] < grown[1]
