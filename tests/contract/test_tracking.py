"""Histograms and tables of credit through verl's own trackers, read back from what these have written."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tensorboard import plugin_util
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from rredcot_plugin.integrations.verl.tracker_payload import (
    MAX_CHARACTERS,
    MAX_SAMPLES,
)
from rredcot_plugin.integrations.verl.tracking import COLUMNS, DROPPED, TABLE, CreditTracker
from rredcot_plugin.report.text import visible
from rredcot_plugin.report.traces import Trace
from tests.contract.tracked_batches import batch, take

STEPS = {1: (batch(1), batch(2)), 2: (batch(3), batch(4)), 3: (batch(5), batch(6)), 4: (batch(7), batch(8))}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of four steps with two mini-batches each, every third step written; verl logs each step behind us."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TENSORBOARD_DIR": str(folder / "tensorboard"),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            **{f"WANDB_{kind}": str(folder) for kind in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR")},
        }.items():
            patch.setenv(name, value)
        tracking = Tracking("project", "run", ["tensorboard", "wandb"], config={"trainer": {}})
        tracker = CreditTracker(every=3, mini_batches=2)
        tracking.log({"val/before": 0.5}, step=0)
        for step, mini_batches in STEPS.items():
            for i, given in enumerate(mini_batches):
                take(tracker, tracking, step, i, given)
            tracking.log({"critic/score/mean": float(step)}, step=step)
        tracking.finish()
        yield folder


def expected_numbers(step: int) -> dict[str, list[float]]:
    traces = [trace for given in STEPS[step] for trace in given.traces()]
    return {
        "rredcot/credit/histogram": [s.credit for t in traces for s in t.segments],
        "rredcot/credit/segment_advantage/histogram": [s.advantage for t in traces for s in t.segments],
        "rredcot/value/boundary/histogram": [s.value for t in traces for s in t.segments[1:]],
        "rredcot/segments/tokens/histogram": [float(s.tokens) for t in traces for s in t.segments],
        "rredcot/segments/per_trace/histogram": [float(len(t.segments)) for t in traces],
    }


def expected_table(step: int) -> list[dict[str, Any]]:
    """The worst segment of each prompt, worst first."""
    by_prompt: dict[str, tuple[Trace, int]] = {}
    for trace in (trace for given in STEPS[step] for trace in given.traces()):
        at = min(range(len(trace.segments)), key=lambda i: trace.segments[i].credit)
        best = by_prompt.get(trace.uid)
        if best is None or trace.segments[at].credit < best[0].segments[best[1]].credit:
            by_prompt[trace.uid] = (trace, at)
    chosen = sorted(by_prompt.values(), key=lambda found: found[0].segments[found[1]].credit)[:MAX_SAMPLES]
    return [
        {
            "text": cut(visible(trace.segments[at].text)),
            "ground truth": cut(visible(str(trace.ground_truth))),
            "segment": f"{at + 1} of {len(trace.segments)}",
            "reward": trace.reward,
            "credit": trace.segments[at].credit,
            "value before": trace.values[at],
            "value after": trace.values[at + 1],
        }
        for trace, at in chosen
    ]


def cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def counted(values: list[float], edges: list[float]) -> list[int]:
    """How many lie in each bin; slow and obvious."""
    inside = [[low <= v < high for v in values].count(True) for low, high in itertools.pairwise(edges)]
    inside[-1] += values.count(edges[-1])
    return inside


@pytest.fixture(scope="module")
def events(written: Path) -> EventAccumulator:
    found = EventAccumulator(str(written / "tensorboard"), size_guidance={"histograms": 0, "tensors": 0})
    return found.Reload()


def test_tensorboard_has_the_histograms_of_the_first_and_every_third_step(events: EventAccumulator) -> None:
    assert sorted(events.Tags()["histograms"]) == sorted(expected_numbers(1))
    for name in expected_numbers(1):
        found = {event.step: event.histogram_value for event in events.Histograms(name)}
        assert list(found) == [1, 3]
        for step, drawn in found.items():
            values = expected_numbers(step)[name]
            assert drawn.num == len(values) == sum(drawn.bucket)
            assert drawn.min == pytest.approx(min(values), abs=1e-5)
            assert drawn.max == pytest.approx(max(values), abs=1e-5)
            assert drawn.sum == pytest.approx(sum(values), abs=1e-3)
            assert drawn.bucket[0] == 0
            if name.startswith("rredcot/segments"):  # whole numbers survive the rounding of dumps
                assert list(drawn.bucket)[1:] == counted(values, list(drawn.bucket_limit))
    assert [event.step for event in events.Scalars(DROPPED)] == [1, 3]
    assert {event.value for event in events.Scalars(DROPPED)} == {0.0}


class Cells(HTMLParser):
    """The texts of a table's cells, and every tag there is."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data


def as_shown(text: str) -> str:
    """A text on one line, white space as a browser shows it."""
    return " ".join(text.replace("\n", " ⏎ ").split())


@pytest.mark.parametrize("step", [1, 3])
def test_tensorboard_shows_the_worst_segments_and_renders_nothing_of_them(
    events: EventAccumulator, step: int
) -> None:
    found = {event.step: event for event in events.Tensors(f"{TABLE}/text_summary")}
    assert list(found) == [1, 3]
    page = Cells()
    page.feed(plugin_util.markdown_to_safe_html(found[step].tensor_proto.string_val[0]))
    assert page.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    head, *rows = [[as_shown(cell) for cell in row] for row in page.rows]
    assert head == list(COLUMNS)
    for row, expected in zip(rows, expected_table(step), strict=True):
        shown = dict(zip(COLUMNS, row, strict=True))
        for name in ("text", "ground truth", "segment"):
            assert shown[name] == as_shown(expected[name])
        assert shown["credit"] == f"−{abs(expected['credit']):.2f}"
        assert shown["value before"] == f"{expected['value before']:.2f}"
        assert shown["prompt (end)"].startswith("…yyy")


def records(path: Path) -> Iterator[Any]:
    """The records of a run's file: LevelDB's log format, behind seven bytes of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


@pytest.fixture(scope="module")
def history(written: Path) -> dict[int, dict[str, Any]]:
    """What W&B has of each step, by name."""
    (path,) = written.glob("wandb/offline-run-*/*.wandb")
    rows: dict[int, dict[str, Any]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") != "history":
            continue
        step = record.history.step.num
        assert step not in rows, "two rows of one step"
        rows[step] = {}
        for item in record.history.item:
            keys = list(item.nested_key) or [item.key]
            if len(keys) == 1:
                rows[step][keys[0]] = json.loads(item.value_json)
            else:
                rows[step].setdefault(keys[0], {})[keys[1]] = json.loads(item.value_json)
    return rows


def test_wandb_has_ours_and_verls_numbers_in_one_row_a_step(history: dict[int, dict[str, Any]]) -> None:
    assert list(history) == [0, 1, 2, 3, 4]
    for step in STEPS:
        assert history[step]["critic/score/mean"] == step
        ours = {name for name in history[step] if name.startswith("rredcot/")}
        assert ours == ({*expected_numbers(step), DROPPED, TABLE} if step in (1, 3) else set())


@pytest.mark.parametrize("step", [1, 3])
def test_wandb_has_the_histograms(history: dict[int, dict[str, Any]], step: int) -> None:
    for name, values in expected_numbers(step).items():
        found = history[step][name]
        assert found["_type"] == "histogram"
        assert found["bins"][0] <= min(values) + 1e-5
        assert found["bins"][-1] >= max(values) - 1e-5
        assert sum(found["values"]) == len(values)
        if name.startswith("rredcot/segments"):
            assert found["values"] == counted(values, found["bins"])
    assert history[step][DROPPED] == 0


@pytest.mark.parametrize("step", [1, 3])
def test_wandb_has_the_table(written: Path, history: dict[int, dict[str, Any]], step: int) -> None:
    (folder,) = written.glob("wandb/offline-run-*/files")
    table = json.loads((folder / history[step][TABLE]["path"]).read_text())
    assert table["columns"] == list(COLUMNS)
    for cells, expected in zip(table["data"], expected_table(step), strict=True):
        row = dict(zip(COLUMNS, cells, strict=True))
        assert {name: row[name] for name in ("text", "ground truth", "segment")} == {
            name: expected[name] for name in ("text", "ground truth", "segment")
        }
        for name in ("reward", "credit", "value before", "value after"):
            assert row[name] == pytest.approx(expected[name], abs=1e-5)
        assert len(row["prompt (end)"]) <= MAX_CHARACTERS
