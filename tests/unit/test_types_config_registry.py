"""Checks at the border: shapes, partitions, options, names."""

from __future__ import annotations

import datetime
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.registry import Registry
from rredcot_plugin.testing import text_rollouts


def rollouts(**kwargs) -> rr.Rollouts:
    base = {
        "token_ids": torch.zeros(2, 3, dtype=torch.int64),
        "response_mask": torch.ones(2, 3, dtype=torch.bool),
        "rewards": torch.zeros(2, 3),
        "group_ids": [0, 1],
    }
    return rr.Rollouts(**(base | kwargs))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rewards": torch.zeros(2, 4)}, r"rewards: expected shape \(2, 3\), got \(2, 4\)"),
        ({"group_ids": [0]}, "group_ids: expected 2 entries"),
        ({"log_probs": torch.full((2, 3), torch.nan)}, "log_probs: expected finite numbers, got 6"),
        ({"texts": ["a", "b"]}, "expected both or neither"),
        ({"token_ids": torch.zeros(3, dtype=torch.int64)}, "two dimensions"),
    ],
)
def test_rollouts_say_what_is_wrong(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollouts(**kwargs)


@pytest.mark.parametrize(
    ("ids", "num", "message"),
    [
        ([[1, 0, 1]], [2], "never decrease"),
        ([[0, 2, 2]], [3], "without tokens"),
        ([[0, 1, 1]], [3], "last id"),
    ],
)
def test_segments_must_be_a_partition(ids: list, num: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.Segments(torch.tensor(ids), torch.tensor(num))


def said_of(ids: list[list[int]], num: list[int]) -> str:
    """What is wrong with this partition, row by row and token by token; nothing if it is right."""
    seen = [[i for i in row if i >= 0] for row in ids]
    if any(b < a for row in seen for a, b in pairwise(row)):
        return "decrease"
    if any(b - a > 1 for row in seen for a, b in pairwise([-1, *row])):
        return "without tokens"
    return "" if num == [len(set(row)) for row in seen] else "last id"


@pytest.mark.parametrize("block", [1, 1 << 15])
def test_segments_agree_with_a_slow_reference(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.types.BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    found = set()
    for _ in range(600):
        ids = torch.randint(-1, 3, (2, 5), generator=generator).sort(dim=1).values
        ids = ids.where(torch.rand(2, 5, generator=generator) < 0.8, -1)  # masked tokens anywhere
        if torch.rand((), generator=generator) < 0.2:
            ids = ids.flip(1)
        num = (ids.amax(dim=1) + 1 - (torch.rand(2, generator=generator) < 0.1).long()).clamp(min=0)
        wrong = said_of(ids.tolist(), num.tolist())
        found.add(wrong)
        if wrong:
            with pytest.raises(ValueError, match=wrong):
                rr.Segments(ids, num)
            continue
        segments = rr.Segments(ids, num)
        places = [
            [[t for t, i in enumerate(row) if i == s] for s in range(segments.max_segments)]
            for row in ids.tolist()
        ]
        assert segments.starts.tolist() == [[min(own, default=5) for own in row] for row in places]
        assert segments.lengths.tolist() == [[len(own) for own in row] for row in places]
        numbers = torch.rand(2, 5, generator=generator)
        sums = [[sum(numbers[b, own].tolist()) for own in row] for b, row in enumerate(places)]
        torch.testing.assert_close(sum_per_segment(numbers, segments), torch.tensor(sums))
    assert found == {"", "decrease", "without tokens", "last id"}


def test_segment_geometry() -> None:
    segments = rr.Segments(torch.tensor([[-1, 0, 0, -1, 1], [-1, -1, -1, -1, -1]]), torch.tensor([2, 0]))
    assert segments.lengths.tolist() == [[2, 1], [0, 0]]
    assert segments.starts.tolist() == [[1, 4], [5, 5]]
    assert segments.exists.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segmentr": "none"}, "Did you mean 'segmenter'"),
        ({"segmenter": "newlin"}, "Did you mean 'newline'"),
        ({"value_estimator": "suport"}, "Did you mean 'support'"),
        ({"lam": 1.5}, r"lam=1.5: expected a number from 0 to 1"),
        ({"lam": "high"}, "lam='high'"),
        ({"scale": "std"}, "Allowed: group_std, none, batch_std"),
        ({"calibrate": "yes"}, "Allowed: none, group_shift, outcome, trees"),
        ({"calibrate_window": -1}, "calibrate_window=-1: expected an integer from 0"),
        ({"calibrate_window": "all"}, "calibrate_window='all'.* or 'auto'"),
        ({"calibrate_window": True}, "calibrate_window=True"),
        ({"leave_one_out": "no"}, "expected true or false"),
        ({"max_probe_tokens": 0}, "a positive integer"),
        ({"segmenter": "fixed", "segmenter_kwargs": {"tokns": 3}}, "tokns"),
        ({"segmenter": "fixed", "segmenter_kwargs": {"tokens": 0}}, "tokens=0"),
        ({"segmenter": "hybrid", "segmenter_kwargs": {"quantile": 2}}, "quantile=2"),
        ({"value_kwargs": {"max_proposals": 0}}, "max_proposals=0"),
        ({"shapers": ["smooth"]}, "unknown shaper 'smooth'"),
        ({"clip": -1}, "clip=-1"),
        (
            {"dump_dir": 2026},
            r"dump_dir=2026: expected the path of a folder as text, such as './2026', or null",
        ),
        ({"dump_dir": datetime.date(2026, 11, 30)}, "such as './2026-11-30'"),  # YAML's 2026-11-30
        ({"dump_dir": True}, "dump_dir=True"),
        ({"credit_timeout_s": 0.5}, "credit_timeout_s=0.5: expected a number from 1"),
        ({"credit_timeout_s": None}, "credit_timeout_s=None"),
    ],
)
def test_options_name_key_value_and_way_out(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.RRedCoTConfig.from_mapping(options)


def test_defaults_are_those_of_the_hydra_group() -> None:
    import dataclasses

    import yaml

    path = Path(rr.__file__).parent / "conf/rredcot/default.yaml"
    written = yaml.safe_load(path.read_text())
    assert set(written) == {f.name for f in dataclasses.fields(rr.RRedCoTConfig)}
    assert rr.RRedCoTConfig.from_mapping(written) == rr.RRedCoTConfig()


def test_registry_refuses_a_taken_name_unless_told() -> None:
    registry = Registry("thing")
    registry.register("a")(dict)
    with pytest.raises(ValueError, match="overwrite=True"):
        registry.register("a")(list)
    registry.register("a", overwrite=True)(list)
    assert registry.get("a") == []


def test_custom_segmenter_by_path_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import torch\nfrom rredcot_plugin import Segments\n"
        "class Halves:\n"
        "    def __call__(self, r):\n"
        "        ids = torch.where(r.response_mask, (torch.arange(r.token_ids.shape[1]) >= 2).long(), -1)\n"
        "        return Segments(ids, torch.full((r.batch_size,), 2))\n"
    )
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine:Halves", {"path": str(tmp_path / "mine.py"), "name": "Halves"}):
        config = rr.RRedCoTConfig.from_mapping({"segmenter": name})
        assert config.build_segmenter()(rollouts()).num_segments.tolist() == [2, 2]
    for wrong, message in (
        ("mine:Thirds", "Thirds"),
        ("nowhere:X", "cannot be imported"),
        ({"path": "x.py"}, "keys"),
    ):
        with pytest.raises(ValueError, match=message):
            rr.RRedCoTConfig.from_mapping({"segmenter": wrong})


def test_the_core_imports_no_host() -> None:
    code = (
        "import sys, rredcot_plugin\n"
        "heavy = {'verl', 'ray', 'vllm', 'transformers', 'transfer_queue', 'omegaconf', 'typer', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("key", ["segmenter_kwargs", "value_kwargs", "baseline_kwargs"])
@pytest.mark.parametrize("value", [3, None, "text", ["a"], {1: 2}])
def test_options_of_an_entry_are_a_mapping(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key}=.*: expected a mapping of options"):
        rr.RRedCoTConfig.from_mapping({"baseline": "trace", key: value})


@pytest.mark.parametrize(
    "shapers",
    [3, None, {"smoothing": 1}, [{"name": "smoothing", "options": 3}], [{"name": "smoothing", "options": {1: 2}}]],
)
def test_shapers_are_a_list_of_names_and_options(shapers: object) -> None:
    with pytest.raises(ValueError, match=r"shapers.*: expected a"):
        rr.RRedCoTConfig.from_mapping({"shapers": shapers})


def test_an_unknown_option_of_an_entry_is_named_with_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"segmenter 'sentence': unknown option 'maxsegments'\. Did you mean 'max_segments'"
    ):
        rr.RRedCoTConfig.from_mapping({"segmenter_kwargs": {"maxsegments": 4}})


def test_an_option_of_other_entries_is_to_be_left_out() -> None:
    known = r"unknown option 'max_proposals'. Known: none. It is one of ground_truth, .*, support: leave it out"
    with pytest.raises(ValueError, match=f"value estimator 'confidence': {known}"):
        rr.RRedCoTConfig.from_mapping({"value_estimator": "confidence", "value_kwargs": {"max_proposals": 4}})


@pytest.mark.parametrize("given", [("abc", None), (["a", "b", "c"], [1.0])])
def test_text_rollouts_have_an_outcome_for_each_text(given: tuple) -> None:
    with pytest.raises(ValueError, match="texts: expected a list of them, and as many outcomes"):
        text_rollouts(*given)
