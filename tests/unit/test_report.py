"""Reports: model text never becomes markup, pages need no network, broken dumps say where they are broken."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rredcot_plugin.report.colour import Scales, strength
from rredcot_plugin.report.curves import Curve, curve_of, draw, read_scalars, save_png
from rredcot_plugin.report.html import Look, render_groups, render_trace
from rredcot_plugin.report.page import Section, render_page, render_table
from rredcot_plugin.report.plots import learning_curves
from rredcot_plugin.report.select import group_traces, worst_segments
from rredcot_plugin.report.traces import Trace, read_dumps

ATTACK = '</span><script>alert("1")</script><img src=x onerror=alert(2)>&lt;b&gt; \x1b[2J\u202e [bold]x[/bold]'


def record(
    credits: list[float], *, step: int = 1, uid: str = "a", prior: float = 0.5, texts: list[str] | None = None
):
    """A dump line as the trainer writes it; the reward follows from prior and credits."""
    values = [prior]
    for credit in credits:
        values.append(values[-1] + credit)
    segments = [
        {
            "text": texts[i] if texts else f"line {i}\n",
            "tokens": 3,
            "value": values[i],
            "reward": credit + (prior if i == 0 else 0.0),
            "advantage": values[-1] - values[i],
        }
        for i, credit in enumerate(credits)
    ]
    return {
        "step": step, "uid": uid, "prompt": "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n",
        "ground_truth": "2", "reward": values[-1], "segments": segments,
    }  # fmt: skip


def dumped(folder: Path, *records: dict[str, Any], name: str = "1.jsonl") -> list[Trace]:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in records))
    return read_dumps(folder)


class Elements(HTMLParser):
    """Tags and attribute names that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def figure():
    return draw([Curve("grpo", (1, 2, 3), (0.1, 0.2, 0.3)), Curve("rredcot", (1, 2, 3), (0.1, 0.4, 0.31))])


def test_credit_of_the_first_segment_leaves_out_the_value_of_the_prompt(tmp_path: Path) -> None:
    (trace,) = dumped(tmp_path, record([0.1, -0.6, 0.0]))
    assert [round(segment.credit, 6) for segment in trace.segments] == [0.1, -0.6, 0.0]
    assert trace.worst == 1
    assert sum(segment.credit for segment in trace.segments) == pytest.approx(trace.reward - 0.5)


def test_model_text_is_escaped_everywhere(tmp_path: Path) -> None:
    hostile = {**record([-0.5], texts=[ATTACK]), "prompt": ATTACK, "ground_truth": ATTACK}
    traces = dumped(tmp_path, hostile)
    body = render_groups(group_traces(traces)) + render_table([ATTACK], [[ATTACK]])
    page = Elements(render_page(ATTACK, ATTACK, [Section(ATTACK, ATTACK, body)]))
    assert not page.tags & {"script", "img", "b", "iframe", "link"}
    assert not any(name.startswith("on") for name in page.attributes)
    assert page.text.count('<script>alert("1")</script>') >= 6
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


def test_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    curve = learning_curves([Curve("grpo", (1, 2), (0.1, 0.2))]).svg
    groups = group_traces(dumped(tmp_path, record([0.2, 0.3]), record([-0.5, 0.0], texts=["c", "d"])))
    page = render_page("t", "l", [Section("c", "", curve), Section("t", "", render_groups(groups))])
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    assert "<script" not in page
    assert page.count("<svg") == 3


def test_curves_take_their_colours_from_the_page() -> None:
    found = learning_curves(
        [Curve("grpo", (1, 2, 3), (0.1, 0.2, 0.3)), Curve("rredcot", (1, 2, 3), (0.1, 0.4, 0.3))]
    )
    assert found.legend == (("grpo", "run0"), ("rredcot", "run1"))
    assert not re.search("#[0-9a-f]{6}|style=|fill=", found.svg)


def test_png_is_a_picture(tmp_path: Path, figure) -> None:
    save_png(figure, tmp_path / "c.png")
    content = (tmp_path / "c.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", 1, "empty file"),
        ("\n\n", 1, "empty file"),
        (json.dumps(record([0.1])) + "\n{half", 2, "Expecting property name"),
        ("[1]", 1, "expected an object, got list"),
        (json.dumps({**record([0.1]), "segments": 3}), 1, "segments: expected list, got 3"),
        (json.dumps({k: v for k, v in record([0.1]).items() if k != "reward"}), 1, "expected the key 'reward'"),
        (json.dumps({**record([0.1]), "reward": "1"}), 1, "reward: expected a number or null, got '1'"),
    ],
)
def test_broken_dump_is_reported_with_file_and_line(tmp_path: Path, content: str, line: int, reason: str) -> None:
    path = tmp_path / "3.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {line}: ") + ".*" + re.escape(reason)):
        read_dumps(path)


def test_folder_without_dumps_and_binary_dump(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no dumps here"):
        read_dumps(tmp_path)
    (tmp_path / "1.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"1\.jsonl, line 1"):
        read_dumps(tmp_path)


def test_numbers_that_were_not_finite_are_shown_as_unknown(tmp_path: Path) -> None:
    broken = record([0.1, 0.2])
    broken["reward"] = None
    for segment in broken["segments"]:
        segment.update(value=None, reward=None, advantage=None)
    (trace,) = dumped(tmp_path, broken)
    assert math.isnan(trace.reward)
    assert trace.worst is None
    card = render_trace(trace, Look(Scales.of([trace])))
    assert "n/a" in card
    assert "nan" not in card
    assert "<svg" not in card


def test_empty_response_has_a_card(tmp_path: Path) -> None:
    (trace,) = dumped(tmp_path, {**record([]), "reward": 0.0})
    assert "empty response" in render_trace(trace)


def test_worst_segments_come_first_and_right_stands_beside_wrong(tmp_path: Path) -> None:
    traces = dumped(
        tmp_path,
        record([0.1, -0.6], uid="mixed", texts=["a", "b"]),
        record([0.2, 0.3], uid="mixed", texts=["a", "c"]),
        record([-0.9, 0.0], uid="all wrong", prior=0.9),
    )
    groups = group_traces(traces)
    assert [group.lowest_credit for group in groups] == pytest.approx([-0.6, -0.9])
    assert [trace.reward for trace in groups[0].traces] == pytest.approx([0.0, 1.0])
    assert [index for _, index in worst_segments(traces, 2)] == [0, 1]


def test_best_trace_is_shown_even_when_others_are_worse(tmp_path: Path) -> None:
    wrong = [record([-0.5 + i / 100], texts=[str(i)]) for i in range(5)]
    (group,) = group_traces(dumped(tmp_path, *wrong, record([0.5], texts=["right"])), most_traces=3)
    assert [trace.segments[0].text for trace in group.traces] == ["0", "1", "right"]
    assert group.size == 6


def test_traces_of_equal_text_are_shown_once(tmp_path: Path) -> None:
    (group,) = group_traces(dumped(tmp_path, record([-0.5]), record([-0.5])))
    assert len(group.traces) == 1
    assert group.size == 2


def test_strength_is_linear_and_leaves_faint_credit_uncoloured() -> None:
    assert strength(-1.0, 2.0) == 0.5
    assert strength(0.01, 1.0) == 0.0
    assert strength(5.0, 1.0) == 1.0
    assert strength(math.nan, 1.0) == 0.0


def test_terminal_obeys_nothing_that_the_model_wrote(tmp_path: Path) -> None:
    console_module = import_module("rich.console")
    from rredcot_plugin.report.terminal import render_trace as render_in_terminal

    (trace,) = dumped(tmp_path, record([-0.5], texts=[ATTACK]))
    console = console_module.Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    console.print(render_in_terminal(trace, 1.0))
    shown = console.export_text(styles=True)
    assert "[bold]x[/bold]" in shown
    assert "\x1b[2J" not in shown
    assert "−0.50" in shown


def test_smoothing_starts_at_the_first_value_and_follows_a_constant() -> None:
    assert Curve("a", (1, 2), (0.7, 0.7)).smoothed() == (0.7, 0.7)
    assert Curve("a", (1, 2), (0.0, 1.0)).smoothed(0.5)[1] == pytest.approx(2 / 3)


def test_scalars_are_read_back_from_event_files(tmp_path: Path) -> None:
    writer_module = import_module("torch.utils.tensorboard")
    with writer_module.SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(1, 2001):  # more points than tensorboard keeps by default
            writer.add_scalar("critic/score/mean", step / 1000, step)
    curve = curve_of("run", read_scalars(tmp_path))
    assert curve.steps == tuple(range(1, 2001))
    assert curve.values[-1] == pytest.approx(2.0)
    with pytest.raises(ValueError, match="expected the metric 'lost'"):
        curve_of("run", read_scalars(tmp_path), "lost")


def test_folder_without_event_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tensorboard event files"):
        read_scalars(tmp_path)


def test_scalars_of_an_earlier_version_have_todays_names(tmp_path: Path) -> None:
    with import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("rredcot/plan/processes/mean", 1.0, 1)
        writer.add_scalar("rredcot/driver/workers/mean", 0.0, 2)
    found = {"rredcot/driver/workers/mean": [(1, 1.0), (2, 0.0)]}
    assert read_scalars(tmp_path) == found
