"""The report's page: everything a model wrote stays text, one script named by its hash, nothing from outside."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from rredcot_plugin.report.colour import credit_scale
from rredcot_plugin.report.corpus import (
    HISTOGRAMS,
    Corpus,
    Problem,
)
from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.fold import folded
from rredcot_plugin.report.report_page import render_report, threshold
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.text import escape
from rredcot_plugin.report.traces import ScoredSegment, Trace
from tests.unit.page_steps import BINS, HISTOGRAM, STEPS

HOSTILE = (
    "</script></style><script>window.__hacked=1</script><img src=x onerror=window.__hacked=2> \" onload='x' "
    "<!-- ]]> &lt;script&gt; $title ${body} \x00\x1b[2J\u202e\u2066\ud800\ufffe <svg/onload=x> </textarea>"
)


BARE = "n/a"


def trace(
    *credits: float,
    prior: float = 0.5,
    text: str = "line\n",
    step: int = 1,
    uid: str = "a",
    prompt: str = "1 + 1 =",
) -> Trace:
    """A trace whose reward follows from prior and credits."""
    values = [prior]
    for credit in credits:
        values.append(values[-1] + credit)
    parts = [ScoredSegment(text, 3, values[i], c, values[-1] - values[i]) for i, c in enumerate(credits)]
    return Trace(step, uid, prompt, "2", values[-1], tuple(parts))


def group(*traces: Trace, size: int = 8) -> Group:
    return Group(traces[0].step, traces[0].prompt, traces[0].ground_truth, traces, size)


def corpus(*groups: Group, **changes: object) -> Corpus:
    shown = sum(len(g.traces) for g in groups)
    plain = Corpus(("a.jsonl",), groups, shown, len(groups), True, (), {}, ())
    return replace(plain, **changes)  # type: ignore[arg-type]


FULL = corpus(
    group(trace(0.1, -0.6), trace(0.25, 0.25)),
    num_traces=5000, num_groups=700, steps=STEPS, calibration=BINS,
    histograms=dict.fromkeys(HISTOGRAMS, HISTOGRAM),
    problems=(Problem("b.jsonl", 7, "not JSON"),), num_problems=31,
)  # fmt: skip


class Elements(HTMLParser):
    """Tags, attributes, texts and scripts as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts.append(data)
        elif self._open != "style":
            self.text += data

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.mark.parametrize(
    "character", [0x1B, 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
)
def test_control_and_direction_characters_become_dots(character: int) -> None:
    assert escape(f"a{chr(character)}b\n\t\u200d") == "a·b\n\t\u200d"


def policy(page: Elements) -> str:
    return next(value for value in page.values("content") if "default-src" in value)


def test_page_tells_how_much_was_read_and_how_much_is_shown() -> None:
    page = Elements(render_report(FULL, title="run 7", notes=["steps 10 to 30"]))
    assert "5,000 traces in 700 groups at 3 steps were read" in page.text
    assert "shown below are 2 traces of 1 group" in page.text
    assert "mostly those with the worst segments, up to a quarter drawn at random" in page.text
    assert "0.00 to 0.50" in page.text
    assert "31 lines could not be read and are left out (the first 1 are listed)" in page.text
    assert [text for text in ("a.jsonl", "b.jsonl", "not JSON", "steps 10 to 30") if text not in page.text] == []
    assert page.text.count("run 7") == 2
    assert {"main", "nav", "header", "section", "article"} <= set(page.tags)


def test_everything_shown_says_so() -> None:
    page = Elements(render_report(corpus(group(trace(-0.5), size=1))))
    assert "1 trace in 1 group were read, and all are shown." in page.text


def test_hostile_texts_stay_texts_everywhere() -> None:
    wrong = replace(trace(-0.5, text=HOSTILE, prompt=HOSTILE, uid=HOSTILE), ground_truth=HOSTILE)
    hostile = replace(FULL, sources=(HOSTILE,), groups=(group(wrong),), problems=(Problem(HOSTILE, 1, HOSTILE),))
    source = render_report(hostile, [Curve(HOSTILE, (1, 2), (0.1, 0.2))], HOSTILE, [HOSTILE])
    page, harmless = Elements(source), Elements(render_report(FULL, [Curve("run", (1, 2), (0.1, 0.2))]))
    assert set(page.tags) == set(harmless.tags)
    assert page.tags.count("script") == 1
    assert page.scripts == harmless.scripts
    assert {name for name, _ in page.attributes} == {name for name, _ in harmless.attributes}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.text.count("<script>window.__hacked=1</script>") >= 8
    assert not re.search("[\x00\x1b\u202e\u2066\ud800]", source)
    source.encode("utf-8")


def test_the_policy_allows_the_one_script_and_nothing_else() -> None:
    page = Elements(render_report(FULL))
    (script,) = page.scripts
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert policy(page) == (
        f"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src 'sha256-{digest}'"
    )


def test_the_script_makes_no_markup_and_asks_for_nothing() -> None:
    (script,) = Elements(render_report(FULL)).scripts
    forbidden = "innerHTML outerHTML insertAdjacent document.write eval( Function( fetch( XMLHttp import( http"
    assert [word for word in forbidden.split() if word in script] == []


def test_page_refers_to_nothing_outside_itself() -> None:
    source = render_report(FULL, [Curve("a", (1, 2), (0.1, 0.2))])
    page = Elements(source)
    assert page.values("src") == []
    assert set(page.values("href")) == {"#h1", "#h2"}
    assert set(page.values("href")) <= {f"#{name}" for name in page.values("id")}
    assert not re.search(r"https?:|//[a-z]|@import|url\(|xmlns", source)


def test_equal_corpora_give_equal_pages() -> None:
    assert render_report(FULL) == render_report(FULL)
    program = (
        "from tests.unit.test_report_page import FULL, render_report; import hashlib, sys;"
        "assert 'matplotlib' not in sys.modules; print(hashlib.sha256(render_report(FULL).encode()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == sha256(render_report(FULL).encode()).hexdigest()


def test_empty_corpus() -> None:
    page = Elements(render_report(corpus(sources=())))
    assert "No traces were read." in page.text
    assert "Not drawn: Mean reward by step (rewards of two steps are needed)" in page.text
    assert "article" not in page.tags
    assert "svg" not in page.tags
    assert "#h2" not in page.values("href")


def test_traces_without_credit_are_shown_uncoloured_and_the_page_says_how_to_get_it() -> None:
    nan = math.nan
    bare = Trace(0, "a", "2 + 2 =", None, 1.0, (ScoredSegment("four", 0, nan, nan, nan),), has_segments=False)
    page = Elements(render_report(corpus(group(bare), has_credit=False)))
    assert "+algorithm.rredcot.dump_dir=FOLDER" in page.text
    assert "rredcot score ROLLOUTS.jsonl" in page.text
    assert "✓ reward 1" in page.text
    assert "4 characters" in page.text
    assert BARE not in page.text
    assert "segments bare" in page.values("class")
    assert not {"neg", "pos", "legend", "value"} & set(page.values("class"))
    assert "loss" not in page.values("name")  # nothing was lost, so there is no slider


def test_some_traces_without_credit_are_explained() -> None:
    broken = replace(trace(math.nan, math.nan), reward=math.nan)
    page = Elements(render_report(corpus(group(trace(-0.5), broken))))
    assert "Traces without colour have no credit" in page.text
    assert "reward n/a" in page.text
    assert page.values("data-outcome") == ["wrong", "unknown"]
    assert "nan" not in page.values("data-loss")


def test_cards_carry_what_the_filters_need() -> None:
    second = group(trace(-0.5, step=7), trace(-0.4, prior=0.4, step=7))
    page = Elements(render_report(corpus(second, group(trace(0.1, -0.6), trace(0.25, 0.25)))))
    assert page.values("data-step") == ["1", "7"]  # the one that lost most is first
    assert page.values("data-mixed") == ["1", "0"]
    assert page.values("data-outcome") == ["wrong", "right", "wrong", "wrong"]
    assert page.values("data-loss") == ["0.6", "0", "0.5", "0.4"]


@pytest.mark.parametrize(
    ("rewards", "expected"), [((0.0, 1.0), 0.5), ((-1.0, 1.0), 0.0), ((1.0, 1.0), 0.0), ((0.0,), 0.0), ((), 0.0)]
)
def test_right_is_above_the_middle_of_the_rewards(rewards: tuple[float, ...], expected: float) -> None:
    shown = [group(*(replace(trace(-0.1), reward=reward) for reward in rewards))] if rewards else []
    assert threshold(corpus(*shown)) == expected


def test_threshold_knows_rewards_that_are_not_shown() -> None:
    assert threshold(corpus(group(replace(trace(-0.1), reward=0.0)), reward_range=(0.0, 1.0))) == 0.5


def test_a_loss_too_small_for_a_dump_has_no_slider() -> None:
    assert 'name="loss"' in render_report(corpus(group(trace(-1e-6, prior=0.0))))
    assert 'name="loss"' not in render_report(corpus(group(trace(-5e-324, prior=0.0))))


@pytest.mark.parametrize("loss", [0.00123456, 0.4567, 0.6, 1.0])
def test_the_end_of_the_slider_keeps_the_trace_that_lost_most(loss: float) -> None:
    page = render_report(corpus(group(trace(-loss, prior=0.5))))
    (most,), (lost,) = (
        re.findall(r'name="loss" min="0" max="([^"]+)"', page),
        re.findall('data-loss="([^"]+)"', page),
    )
    assert 0.99 * float(lost) < float(most) <= float(lost)


def test_a_mark_never_contradicts_its_colour() -> None:
    pages = [
        render_report(corpus(group(*(replace(trace(0.1), reward=r) for r in rs))))
        for rs in ((-1.0, 0.0), (1.0, 9.0))
    ]
    assert '<span class="badge good">reward 0<' in pages[0]  # the best reward that there is
    assert '<span class="badge bad">reward 1<' in pages[1]


def test_one_outlier_does_not_bleach_the_others() -> None:
    usual = [trace(0.1, -0.4) for _ in range(30)]
    assert credit_scale([*usual, trace(-300.0)]) == pytest.approx(0.4)
    assert credit_scale([trace(0.0)]) == 1.0
    assert credit_scale([]) == 1.0
    page = Elements(render_report(corpus(group(*usual, trace(-300.0)))))
    assert "−0.40 or less" in page.text


def test_all_numbers_of_a_segment_are_in_the_page_without_hovering() -> None:
    page = Elements(render_report(corpus(group(trace(0.1, -0.6)))))
    assert (
        "segment 2 of 2, 3 tokens: credit −0.600, advantage −0.600; expected reward 0.600 before, 0.000 after"
        in page.text
    )
    assert page.values("title") == []


def test_long_texts_are_folded_and_lose_nothing() -> None:
    text = "".join(f"word{i} " for i in range(20_000))
    html = folded(text, 600)
    assert html.index("<details>") < 500
    assert f"show all {len(text):,} characters" in html
    assert "".join(re.findall(r'<span class="part">(.*?)</span>', html, re.DOTALL)) == text
    assert folded("a" * 900, 600) == f'<span class="part">{"a" * 900}</span>'


def test_a_long_trace_scrolls_in_its_card_and_its_curve_has_a_stretch_a_segment() -> None:
    long = trace(*([0.01, -0.02] * 32), text="x" * 1600)
    page = Elements(render_report(corpus(group(long))))
    assert "segments long" in page.values("class")
    assert page.values("class").count("area") == 64
    assert page.tags.count("details") == 64
