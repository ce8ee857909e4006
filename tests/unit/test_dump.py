"""Dumps: which traces are chosen, how much of the disk they take, and what happens when it is full."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.adapter.dump import MAX_ROWS, MEGABYTE, Dumper, choose_rows
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.trace_record import CreditedBatch
from rredcot_plugin.report.traces import read_dumps
from rredcot_plugin.text.alignment import TokenBytes
from tests.unit.reference import text_rollouts

BYTES = TokenBytes(np.tile(np.arange(256, dtype=np.uint8), 2), np.arange(513))
"""A token a byte."""


def step_of(group_ids: list[Hashable]) -> CreditedBatch:
    rollouts = text_rollouts(["1 + 1\n= 2"] * len(group_ids), [1.0] * len(group_ids), group_ids=group_ids)
    prompts = [torch.tensor(list(b"1 + 1 =")) for _ in group_ids]
    rows = PromptedRollouts(rollouts, prompts, [""] * len(prompts), [9] * len(prompts))
    config = rr.RRedCoTConfig(segmenter="newline", calibrate="none")
    return CreditedBatch(rows, rollouts, rr.assign_credit(rollouts, config), BYTES)


def uids(path: Path) -> list[str]:
    return [json.loads(line)["uid"] for line in path.read_text().splitlines()]


# ---- which traces


def test_a_prompt_has_all_of_its_rollouts_or_none(tmp_path: Path) -> None:
    mixed = [f"prompt {i % 40}" for i in range(40 * 7)]  # as verl's balancing leaves them
    Dumper(tmp_path, 1024).write(3, 0, step_of(mixed))
    found = Counter(uids(tmp_path / "3.jsonl"))
    assert set(found.values()) == {7}
    assert len(found) == MAX_ROWS // 7


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 12))
def test_groups_stay_whole_where_one_fits(groups: list[int], most: int) -> None:
    chosen = choose_rows(groups, most)
    sizes, found = Counter(groups), Counter(groups[row] for row in chosen)
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))
    if any(size <= most for size in sizes.values()):
        assert all(found[group] == sizes[group] for group in found)
        assert all(len(chosen) + sizes[group] > most for group in sizes if group not in found)
    elif groups:
        assert len(chosen) == most
        assert len(found) == 1


def test_the_mini_batches_of_a_step_have_files_of_their_own_and_share_its_rows(tmp_path: Path) -> None:
    dumper = Dumper(tmp_path, 1024, mini_batches=4)
    for mini_batch in range(4):
        dumper.write(5, mini_batch, step_of([f"{mini_batch}.{i // 8}" for i in range(80)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5.1.jsonl", "5.2.jsonl", "5.3.jsonl", "5.jsonl"]
    traces = read_dumps(tmp_path)
    assert len(traces) == MAX_ROWS
    assert {trace.step for trace in traces} == {5}


# ---- the disk


def test_a_folder_that_is_full_gets_no_more_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, other = tmp_path / "1.jsonl", tmp_path / "notes.txt"
    earlier.write_bytes(b" " * (MEGABYTE - 1))  # what a run before this one has left
    other.write_bytes(b" " * MEGABYTE)
    dumper = Dumper(tmp_path, 1)
    dumper.write(2, 0, step_of(["a", "a"]))
    assert not caplog.records, "one byte is left"
    assert uids(tmp_path / "2.jsonl") == ["a", "a"]
    for step in (3, 4):
        dumper.write(step, 0, step_of(["a", "a"]))
    assert not (tmp_path / "3.jsonl").exists()
    assert not (tmp_path / "4.jsonl").exists()
    (record,) = caplog.records
    for part in ("rredcot: dump_dir", "dump_max_mb=1", str(tmp_path), "1.0 MB"):
        assert part in record.getMessage()
    earlier.unlink()
    dumper.write(5, 0, step_of(["a", "a"]))
    assert (tmp_path / "5.jsonl").exists(), "there is room again"


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "dumps"
    dumper = Dumper(folder, 1024)
    for step in (1, 2):
        dumper.write(step, 0, step_of(["a"]))
    (record,) = caplog.records
    assert str(folder) in record.getMessage()
    assert "Not a directory" in record.getMessage()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to write more than ``size`` bytes into a file, as a disk does that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_leaves_nothing_behind_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dumper = Dumper(tmp_path, 1024)
    dumper.write(1, 0, step_of(["a"]))
    before = (tmp_path / "1.jsonl").read_bytes()
    with largest_file(100):
        dumper.write(1, 0, step_of(["b", "b"]))
        dumper.write(2, 0, step_of(["b", "b"]))
    assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]
    assert (tmp_path / "1.jsonl").read_bytes() == before, (
        "a step that is repeated keeps its file until the new one is whole"
    )
    assert len(caplog.records) == 1
    assert str(tmp_path) in caplog.text
    dumper.write(2, 0, step_of(["b", "b"]))
    assert uids(tmp_path / "2.jsonl") == ["b", "b"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dump_max_mb", 0),
        ("dump_max_mb", 1.5),
        ("histogram_every", -1),
        ("histogram_every", True),
        ("credit_workers", -1),
        ("credit_workers", "two"),
        ("credit_workers", True),
    ],
)
def test_options_of_dumps_and_tracking_are_checked(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key}={value!r}: expected an? (positive )?integer"):
        rr.RRedCoTConfig.from_mapping({key: value})
