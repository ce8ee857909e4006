"""Reading for reports: exact numbers, all three kinds of lines, bounded memory, nothing broken goes unnoticed."""

from __future__ import annotations

import json
import math
import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from rredcot_plugin.commands.score import default_out
from rredcot_plugin.report.corpus import HISTOGRAMS, Corpus
from rredcot_plugin.report.histogram import MOST_SHOWN, StreamingHistogram
from rredcot_plugin.report.read_corpus import read_corpus
from rredcot_plugin.report.reliability import BUFFERED, Reliability, bin_edges, student_t
from tests.unit.corpus_lines import trace, write


def shown(corpus: Corpus) -> list[str]:
    """First segments of all traces that are shown."""
    return [found.segments[0].text.split()[0] for group in corpus.groups for found in group.traces]


def test_numbers_of_each_step(tmp_path: Path) -> None:
    write(tmp_path / "2.jsonl", [trace([0.5], step=2, prior=0.5)])
    write(tmp_path / "1.jsonl", [trace([0.1, -0.6]), trace([0.2, 0.3], uid="b")])
    corpus = read_corpus([tmp_path])
    first, second = corpus.steps
    assert (first.step, first.traces, second.step, second.traces) == (1, 2, 2, 1)
    assert (first.reward, first.reward_std, first.value) == pytest.approx((0.5, 0.5, 0.5))
    assert first.squared_error == pytest.approx((0.5**2 + 0.6**2 + 0.5**2 + 0.3**2) / 4)
    assert (first.tokens, first.segments) == (7, 2)
    assert (corpus.num_traces, corpus.num_groups, corpus.has_credit) == (3, 3, True)
    assert corpus.histograms.keys() == HISTOGRAMS.keys()
    assert sum(corpus.histograms["credit"].counts) == 5
    assert corpus.sources == (str(tmp_path),)


def test_rollouts_beside_what_score_made_of_them_count_once(tmp_path: Path) -> None:
    rollout = {"prompt": "1 + 1 =", "response": "2", "reward": 1.0}
    for name in ("1.jsonl", "2.jsonl"):
        write(tmp_path / name, [rollout])
    write(default_out(tmp_path / "1.jsonl"), [trace([0.5]), trace([0.25])])
    assert read_corpus([tmp_path]).num_traces == 3
    assert read_corpus([tmp_path, tmp_path / "1.jsonl"]).num_traces == 4  # named, so wanted


def test_unknown_numbers_are_left_out_of_means(tmp_path: Path) -> None:
    unknown = trace([0.1, 0.2])
    unknown["reward"] = None
    unknown["segments"][0].update(value=None, reward=None, advantage=None)
    infinite = json.dumps({**trace([0.25]), "reward": 12345}).replace("12345", "1e999")
    corpus = read_corpus([write(tmp_path / "x.jsonl", [unknown, infinite, trace([0.5])])])
    (step,) = corpus.steps
    assert (step.traces, step.reward, step.value) == (3, 1.0, 0.5)
    assert step.squared_error == pytest.approx(0.25)
    assert sum(corpus.histograms["reward"].counts) == 1
    assert sum(found.states for found in corpus.calibration) == 1
    assert not corpus.num_problems


def test_a_corpus_without_any_number(tmp_path: Path) -> None:
    corpus = read_corpus([write(tmp_path / "x.jsonl", [{**trace([]), "reward": None}])])
    assert math.isnan(corpus.steps[0].reward)
    assert math.isnan(corpus.steps[0].value)
    assert corpus.histograms.keys() == {"segments"}
    assert corpus.calibration == ()
    assert not corpus.has_credit


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e4])
def test_histograms_are_exact_for_their_edges(scale: float) -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.normal(size=20_000) * scale * size for size in (0.01, 1, 5)])
    streaming = StreamingHistogram(1e-6)
    for part in np.split(numbers, 30):
        streaming.add(part)
    found = streaming.finish()
    assert found is not None
    assert list(found.counts) == np.histogram(numbers, bins=found.edges)[0].tolist()
    assert sum(found.counts) == numbers.size
    assert MOST_SHOWN / 4 < len(found.counts) <= MOST_SHOWN + 1
    assert np.diff(found.edges) == pytest.approx(found.edges[1] - found.edges[0])


def test_histogram_stays_exact_while_its_range_grows() -> None:
    rng = np.random.default_rng(3)
    for parts in range(2, 12):
        numbers = [rng.normal(size=500) * 3.0**i for i in range(parts)]
        streaming = StreamingHistogram(1e-6)
        for part in numbers:
            streaming.add(part)
        found = streaming.finish()
        assert found is not None
        assert list(found.counts) == np.histogram(np.concatenate(numbers), bins=found.edges)[0].tolist()


def test_histogram_of_rewards_puts_one_into_the_last_bin_and_decimals_on_their_edges() -> None:
    streaming = StreamingHistogram(1e-6)
    streaming.add(np.array([0.0, 0.29, 0.35, 1.0, 1.0, np.nan]))
    found = streaming.finish()
    assert found is not None
    assert (found.edges[0], found.edges[-1]) == (0.0, 1.0)
    assert found.counts[-1] == 2
    assert found.counts[found.edges.index(0.35)] == 1


@pytest.mark.parametrize("number", [0.0, 1.0, -1e14, 3e-6, 0.5])
def test_histogram_of_one_number(number: float) -> None:
    streaming = StreamingHistogram(1e-6)
    streaming.add(np.full(7, number))
    found = streaming.finish()
    assert found is not None
    assert found.counts == (7,)
    assert found.edges[0] <= number <= found.edges[1]
    assert found.edges[0] < found.edges[1]


def test_histogram_of_counts_has_a_bin_for_each() -> None:
    streaming = StreamingHistogram(1.0)
    streaming.add(np.array([1.0, 2.0, 2.0, 4.0]))
    found = streaming.finish()
    assert found is not None
    assert (found.edges, found.counts) == ((1, 2, 3, 4, 5), (1, 2, 0, 1))


def test_calibration_is_that_of_scikit_learn() -> None:
    curve = import_module("sklearn.calibration").calibration_curve
    rng = np.random.default_rng(1)
    values, rewards = rng.random(500), (rng.random(500) < 0.4).astype(float)
    reliability = Reliability()
    for i, (value, reward) in enumerate(zip(values, rewards, strict=True)):
        reliability.add([value], [reward], str(i % 40))
    bins = reliability.finish()
    means, predicted = curve(rewards, values, n_bins=10)
    assert [found.reward for found in bins] == pytest.approx(means)
    assert [found.value for found in bins] == pytest.approx(predicted)
    assert sum(found.states for found in bins) == 500


def test_interval_of_calibration_counts_prompts() -> None:
    """The same 40 outcomes: of 40 prompts, and 10 times each of the same 4 prompts."""
    outcomes = [1.0, 0.0, 0.0, 1.0] * 10
    many, few = Reliability(), Reliability()
    for i, outcome in enumerate(outcomes):
        many.add([0.55], [outcome], str(i))
        few.add([0.55], [outcome], str(i % 4))
    (many_bin,), (few_bin,) = many.finish(), few.finish()
    t = import_module("scipy.stats").t
    error = math.sqrt(40 / 39 * 40 * 0.25) / 40
    assert many_bin.reward_high == pytest.approx(0.5 + t.ppf(0.975, 39) * error, abs=1e-3)
    assert many_bin.reward_low == pytest.approx(0.5 - t.ppf(0.975, 39) * error, abs=1e-3)
    assert (few_bin.prompts, few_bin.reward_low, few_bin.reward_high) == (4, 0.0, 1.0)


def test_interval_of_prompts_of_unequal_size() -> None:
    """The formula of the documentation, prompt by prompt."""
    rng = np.random.default_rng(4)
    states = [(prompt, float(rng.random() < 0.3)) for prompt in range(30) for _ in range(1 + prompt % 7)]
    reliability = Reliability()
    for prompt, reward in states:
        reliability.add([0.35], [reward], str(prompt))
    (found,) = reliability.finish()
    mean = sum(reward for _, reward in states) / len(states)
    off = [sum(reward - mean for prompt, reward in states if prompt == g) for g in range(30)]
    error = math.sqrt(30 / 29 * sum(x * x for x in off)) / len(states)
    half = import_module("scipy.stats").t.ppf(0.975, 29) * error
    assert (found.reward_low, found.reward_high) == pytest.approx((mean - half, mean + half), abs=1e-4)


def test_interval_covers_the_mean_of_clusters() -> None:
    """95 % intervals of 400 small samples with strongly correlated rewards of a prompt."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        reliability = Reliability()
        for prompt, chance in enumerate(rng.beta(1, 1, size=20)):
            for _ in range(rng.integers(2, 9)):
                reliability.add([0.5, 0.52], [float(rng.random() < chance)] * 2, str(prompt))
        (found,) = reliability.finish()
        covered += found.reward_low <= 0.5 <= found.reward_high
    assert 0.91 < covered / 400 < 0.98


def test_interval_of_no_deviation_and_of_one_prompt() -> None:
    reliability = Reliability()
    for i in range(10):
        reliability.add([0.05], [0.0], str(i))
        reliability.add([0.95], [1.0], str(i))
    reliability.add([0.45], [1.0], "x")
    low, middle, high = reliability.finish()
    assert low.reward_low == 0.0
    assert low.reward_high == pytest.approx(1 - 0.025**0.1)  # Clopper and Pearson for 0 of 10
    assert (high.reward_low, high.reward_high) == (pytest.approx(0.025**0.1), 1.0)
    assert math.isnan(middle.reward_low)


def test_calibration_bins_stay_when_later_values_lie_outside() -> None:
    reliability = Reliability()
    reliability.add([0.5] * BUFFERED, [1.0] * BUFFERED, "a")
    reliability.add([-2.0, 3.0], [0.0] * 2, "b")
    first, middle, last = reliability.finish()
    assert (first.low, last.high) == (-2.0, 3.0)
    assert (first.states, middle.states, last.states) == (1, BUFFERED, 1)


def test_prompts_beyond_the_most_share_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.report.reliability.MOST_PROMPTS", 8)
    reliability = Reliability()
    for i in range(100):
        reliability.add([0.5], [float(i % 2)], str(i))
    (found,) = reliability.finish()
    assert (found.states, found.prompts, found.reward) == (100, 8, 0.5)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 7.3), (-1e-5, 2e-5), (1e14, 1e14), (-3.0, -3.0)])
def test_edges_of_other_values_hold_them(low: float, high: float) -> None:
    edges = bin_edges(low, high)
    assert edges[0] <= low <= high <= edges[-1]
    assert 1 <= len(edges) - 1 <= 10
    assert (np.diff(edges) > 0).all()


def test_quantiles_of_student() -> None:
    t = import_module("scipy.stats").t
    for freedom in (*range(1, 40), 1000):
        assert student_t(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=5e-3)


def test_a_group_is_whole_however_it_is_spread(tmp_path: Path) -> None:
    wrong = [trace([-0.5 + i / 100], uid=f"u{i}", text=f"wrong{i}", prior=0.5) for i in range(50)]
    right = [trace([0.5], uid=f"u{i}", text=f"right{i}") for i in range(50)]
    corpus = read_corpus([write(tmp_path / "x.jsonl", wrong + right)], max_traces=8, seed=3)
    assert (corpus.num_groups, corpus.num_traces) == (50, 100)
    assert all(group.size == 2 for group in corpus.groups)
    for group in corpus.groups:
        number = group.traces[0].uid[1:]
        assert [found.segments[0].text.split()[0] for found in group.traces] == [
            f"wrong{number}",
            f"right{number}",
        ]
    assert {"wrong0", "wrong1", "wrong2"} <= set(shown(corpus))
    assert [group.lowest_credit for group in corpus.groups] == sorted(
        group.lowest_credit for group in corpus.groups
    )


def test_equal_names_in_two_files_are_two_groups(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.jsonl", [trace([-0.5]), trace([0.5], text="right")])
    corpus = read_corpus([tmp_path / "one.jsonl", tmp_path / "two.jsonl", tmp_path])  # each file counts once
    assert (corpus.num_groups, corpus.num_traces) == (2, 4)


def test_a_share_of_the_groups_is_ordinary_and_drawn_evenly(tmp_path: Path) -> None:
    records = [trace([-0.9 + i / 500], uid=str(i), text=f"t{i}", prior=0.9) for i in range(400)]
    path = write(tmp_path / "x.jsonl", records)
    drawn: list[int] = []
    for seed in range(60):
        corpus = read_corpus([path], max_traces=8, seed=seed)
        numbers = sorted(int(name[1:]) for name in shown(corpus))
        assert len(numbers) == 8
        assert numbers[:6] == list(range(6))
        drawn += numbers[6:]
    assert 150 < np.mean(drawn) < 250
    assert min(drawn) < 60
    assert max(drawn) > 340
    assert shown(read_corpus([path], max_traces=8, seed=1)) == shown(read_corpus([path], max_traces=8, seed=1))


def test_the_choice_keeps_both_bounds(tmp_path: Path) -> None:
    rng = random.Random(0)
    records = [
        trace([-rng.random() / 2], uid=str(i // 4), text=f"{i} " + "x" * rng.randrange(5000)) for i in range(400)
    ]
    path = write(tmp_path / "x.jsonl", records)
    for max_traces, max_bytes in ((1, 10**9), (7, 10**9), (400, 20_000), (50, 3000), (50, 10)):
        corpus = read_corpus([path], max_traces=max_traces, max_bytes=max_bytes)
        texts = [part.text for group in corpus.groups for found in group.traces for part in found.segments]
        assert len(texts) <= max_traces
        assert sum(map(len, texts)) <= max_bytes
        assert bool(texts) == (max_bytes > 10)
        assert corpus.num_traces == 400


def test_every_trace_of_a_small_corpus_is_shown(tmp_path: Path) -> None:
    records = [trace([-0.1 * i], uid=str(i // 8), text=str(i), prior=0.9) for i in range(16)]
    assert sorted(map(int, shown(read_corpus([write(tmp_path / "x.jsonl", records)])))) == list(range(16))


def test_values_next_to_nothing_are_counted() -> None:
    numbers = Reliability()
    numbers.add([-5e-324, 0.0], [1.0] * 2, "a")
    (found,) = numbers.finish()
    assert (found.states, found.reward) == (2, 1.0)
