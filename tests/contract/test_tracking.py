"""Histograms and tables of credit through verl's own trackers, read back from what these have written."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import struct
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard import plugin_util
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import Tracking

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.trace_record import trace_record
from rredcot_plugin.integrations.verl.dump import Dumper
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.tracker_payload import (
    MAX_CHARACTERS,
    MAX_SAMPLES,
    credit_numbers,
    histogram,
    histograms,
    worst_samples,
)
from rredcot_plugin.integrations.verl.tracking import COLUMNS, DROPPED, TABLE, WRITERS, CreditTracker
from rredcot_plugin.report.text import visible
from rredcot_plugin.report.traces import Trace, read_dumps, read_trace
from rredcot_plugin.text.alignment import TokenBytes
from tests.unit.reference import text_rollouts

BYTES = TokenBytes(np.tile(np.arange(256, dtype=np.uint8), 2), np.arange(513))
"""A token a byte."""

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "![x](http://198.51.100.1/x.png) [l](javascript:alert(1)) <http://198.51.100.1>",
    "| a | b | \\| **b** _e_ `c` ``` # h 1. x",
    "&lt;b&gt; &#60;i&#62; &amp;",
    "\x02klzzwxh:0001\x03 \x02wzxhzdk:0\x03 \x00 \x1b[31m \u202e \u2028 \ud800",
    "a\tb " + "x" * 400 + "<b>",
    "ünïcödé 你好 🙂",
)
"""First lines of responses: HTML, Markdown, what Python-Markdown keeps its own places with, control characters."""


@dataclasses.dataclass(frozen=True)
class Batch:
    rows: PromptedRollouts
    rollouts: rr.Rollouts
    credit: rr.Credit

    def traces(self) -> list[Trace]:
        """The same credit, as dumps have it."""
        return [
            read_trace(trace_record(1, row, self.rows, self.rollouts, self.credit, BYTES))
            for row in range(self.rollouts.batch_size)
        ]


def batch(seed: int, lines: tuple[str, ...] = HOSTILE) -> Batch:
    """Two rollouts of each of some prompts, with random values at the boundaries."""
    random = torch.Generator().manual_seed(seed)
    texts = [f"{line}\nso\n{i} it is" for line in lines for i in range(2)]
    groups = [f"{seed}.{i // 2}" for i in range(len(texts))]
    rollouts = text_rollouts(
        texts, [float(i % 2) for i in range(len(texts))], group_ids=groups, ground_truths=texts
    )
    prompts = [torch.tensor(list(f"<b>prompt</b> {'y' * 500} of {group}".encode())) for group in groups]
    rows = PromptedRollouts(rollouts, prompts, [""] * len(texts), [len(text) for text in texts])
    config = rr.RRedCoTConfig(segmenter="newline", segmenter_kwargs={"answer_markers": []})
    segments = config.build_segmenter()(rollouts)
    values = torch.rand(len(texts), segments.max_segments, generator=random) * segments.exists
    return Batch(rows, rollouts, rr.assign_credit(rollouts, config, segments=segments, values=values))


def take(tracker: CreditTracker, tracking: Any, step: int, mini_batch: int, given: Batch) -> None:
    tracker.take(tracking, step, mini_batch, given.rows, given.rollouts, given.credit, BYTES)


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


# ---- TensorBoard


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


# ---- W&B


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


# ---- nothing of it stops or changes a run


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    given = batch(9)
    values, deltas = given.credit.values.clone(), given.credit.deltas.clone()
    values[0, 1], deltas[1, 1], deltas[2, 2] = torch.nan, torch.inf, torch.nan
    broken = dataclasses.replace(given.credit, values=values, deltas=deltas)
    drawn, dropped = histograms([credit_numbers(broken)])
    assert dropped == 3
    assert all(np.isfinite(found.edges).all() for found in drawn.values())
    assert (
        drawn["rredcot/credit/histogram"].counts.sum()
        == len(credit_numbers(broken)["rredcot/credit/histogram"]) - 2
    )
    assert all(np.isfinite(s.credit) for s in worst_samples(given.rows, given.rollouts, broken, BYTES))
    nothing = dataclasses.replace(broken, values=values * torch.nan, deltas=deltas * torch.nan)
    assert "rredcot/credit/histogram" not in histograms([credit_numbers(nothing)])[0]
    assert worst_samples(given.rows, given.rollouts, nothing, BYTES) == []


@pytest.mark.parametrize("texts", [[], [""], ["", "a"]])
def test_empty_batches_and_empty_responses(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = (
        text_rollouts(texts)
        if texts
        else rr.Rollouts(
            torch.zeros(0, 0, dtype=torch.int64),
            torch.zeros(0, 0).bool(),
            torch.zeros(0, 0),
            [],
            texts=[],
            token_offsets=[],
        )
    )
    segments = (
        rr.get_segmenter("newline")(rollouts) if texts else rr.Segments(rollouts.token_ids, torch.zeros(0).long())
    )
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="newline"), segments=segments)
    rows = PromptedRollouts(
        rollouts, [torch.zeros(0, dtype=torch.int64)] * len(texts), [""] * len(texts), [0] * len(texts)
    )
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    tracking = Tracking("project", "run", ["tensorboard"])
    take(CreditTracker(every=1), tracking, 1, 0, Batch(rows, rollouts, credit))
    tracking.finish()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert (f"{TABLE}/text_summary" in found.Tags()["tensors"]) == ("a" in texts)
    assert ("rredcot/segments/per_trace/histogram" in found.Tags()["histograms"]) == bool(texts)


@pytest.mark.parametrize("values", [[0.5] * 9, [1e30, -1e30], [3e38, 3e38], [1e9, 1e9 + 1e-3], [1e-40, 2e-40]])
@pytest.mark.parametrize("whole", [False, True])
def test_a_histogram_of_any_finite_numbers(values: list[float], whole: bool) -> None:
    drawn = histogram(np.array(values), whole)
    assert drawn.counts.sum() == len(values)
    assert (np.diff(drawn.edges) > 0).all()


class FullDisk:
    """Stands for a SummaryWriter whose disk is full."""

    def add_histogram_raw(self, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")


def test_a_backend_that_fails_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    import wandb

    assert wandb.run is None
    tracking = SimpleNamespace(logger={"tensorboard": SimpleNamespace(writer=FullDisk()), "wandb": wandb})
    tracker = CreditTracker(every=1)
    for step in (1, 2):
        take(tracker, tracking, step, 0, batch(step))
    messages = [record.getMessage() for record in caplog.records if "no histograms in" in record.getMessage()]
    assert len(messages) == 2
    assert "tensorboard" in messages[0] and "No space left" in messages[0]
    assert "wandb" in messages[1] and "wandb.init" in messages[1]


class Untouched(dict):
    """The trackers of a run that has none of ours: reading their names is all that is done."""

    def __getitem__(self, key: object) -> Any:
        raise AssertionError(f"{key} was used")


def test_other_trackers_get_nothing_and_no_step_is_written_with_0() -> None:
    tracker, never = CreditTracker(every=1), CreditTracker(every=0)
    take(tracker, SimpleNamespace(logger=Untouched(console=1, file=2, mlflow=3)), 1, 0, batch(1))
    take(never, SimpleNamespace(logger=Untouched(tensorboard=1, wandb=2)), 1, 0, batch(1))


def test_the_runner_hands_over_what_the_update_gets_and_changes_nothing(tmp_path: Path) -> None:
    given = batch(1)
    before = given.credit.advantages.clone(), torch.random.get_rng_state(), np.random.get_state()[1].copy()
    seen: list[tuple] = []
    runner = SimpleNamespace(
        _table=BYTES,
        settings=rr.RRedCoTConfig(dump_every=2),
        trainer=SimpleNamespace(global_steps=4, local_trigger_step=1, logger="verl's"),
        _dumper=Dumper(tmp_path, 1024, 2),
        _tracker=SimpleNamespace(take=lambda *parts: seen.append(parts)),
    )
    CreditRunner._show(runner, given.rows, given.rollouts, given.credit)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["4.1.jsonl"]
    assert [trace.segments for trace in read_dumps(tmp_path)] == [trace.segments for trace in given.traces()]
    assert seen[0][:3] == ("verl's", 4, 1)
    worst_samples(given.rows, given.rollouts, given.credit, BYTES)
    histograms([credit_numbers(given.credit)])
    assert torch.equal(given.credit.advantages, before[0])
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()


# ---- facts of verl


def test_where_verl_keeps_its_trackers_and_when_it_logs() -> None:
    fit = inspect.getsource(PPOTrainer.fit)
    assert "self.logger = Tracking(" in fit
    step, log = fit.index("batch = self.step("), fit.index("self.logger.log(data=metrics, step=self.global_steps)")
    assert fit.index("self.logger = Tracking(") < step < log < fit.index("self.global_steps += 1", step)
    assert set(WRITERS) <= set(Tracking.supported_backend)


def test_the_mini_batches_of_a_step_are_counted() -> None:
    source = inspect.getsource(PPOTrainer.step)
    assert "for trigger_idx in range(self.parameter_sync_step):" in source
    assert source.index("self.local_trigger_step = trigger_idx") < source.index("self._step_once(")
    start = inspect.getsource(PPOTrainer.__init__)
    assert "self.parameter_sync_step = " in start
    assert "self.local_trigger_step = 0" in start
