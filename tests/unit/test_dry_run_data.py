"""Files that verl and OpenRLHF read are read by a dry run too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rredcot_plugin.dry_run.architecture import find_architecture
from rredcot_plugin.dry_run.data import ROWS, Data, gather
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.openrlhf_training import prompt_of
from rredcot_plugin.dry_run.reward import RewardTrial
from rredcot_plugin.dry_run.trial import trial_of

PROMPT = [{"role": "user", "content": "1 + 1 = ?"}]
ROW = {"data_source": "x", "prompt": PROMPT, "reward_model": {"ground_truth": "2"}}


def read(path: Path, columns: tuple[str, ...] | None = None) -> Data:
    keys = {"prompt_key": "prompt", "reward_fn_key": "data_source"}
    view = SimpleNamespace(data=SimpleNamespace(train_files=str(path), val_files=[str(path)], **keys))
    return gather(view, path.with_name("run.sh"), path.parent, {}, None, columns)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "list.json"])
def test_rows_are_the_same_in_every_form(tmp_path: Path, name: str) -> None:
    path, rows = tmp_path / name, [ROW] * (ROWS + 1)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = json.dumps(rows, indent=1) if name == "list.json" else "\n".join(map(json.dumps, rows))
        path.write_text(text, encoding="utf-8")
    found = read(path)
    assert found.rows == [ROW] * ROWS
    assert found.val.num_rows == ROWS


def test_openrlhf_asks_for_no_columns_of_verl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "1 + 1"}\n\n{"question": "2 + 2", "answer": "4"}\n', encoding="utf-8")
    assert read(path, ("question",)).rows[1] == {"question": "2 + 2", "answer": "4"}
    with pytest.raises(RecipeError, match="missing 'input'; found 'question', 'answer'"):
        read(path, ("input",))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "{", "a.jsonl: no JSON file: "),
        ("a.jsonl", '{"prompt": ' + "[" * 100_000, "no JSON file: "),
        ("a.jsonl", "3\n", "no JSON file: expected one mapping per row"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}\n', "no JSON file: "),
        ("a.parquet", "x", "no parquet file: "),
        ("a.csv", "prompt\nx\n", "expected a file whose name ends in .parquet, .json, .jsonl"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=re.escape(message)):
        read(path, ("prompt",))


@pytest.mark.parametrize("key", ["train_files", "val_files"])
@pytest.mark.parametrize("files", [[], None])
def test_a_list_without_files_is_named(tmp_path: Path, key: str, files: list[str] | None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    view = SimpleNamespace(data=SimpleNamespace(**{"train_files": str(path), "val_files": str(path), key: files}))
    with pytest.raises(RecipeError, match=re.escape(f"data.{key}={files}: expected at least one file")):
        gather(view, tmp_path / "run.sh", tmp_path, {}, None, ("prompt",))


def test_text_where_verl_needs_messages_is_named(tmp_path: Path) -> None:
    """verl's chat template goes over its characters and makes of each a message without content."""
    path, wanted = tmp_path / "a.jsonl", ("prompt", "data_source", "reward_model")
    row = '{"prompt": %s, "data_source": "x", "reward_model": {"ground_truth": "2"}}\n'
    path.write_text(row % '"1 + 1"', encoding="utf-8")
    with pytest.raises(RecipeError, match=r"column .prompt. holds text, .* expected a list of messages"):
        read(path, wanted)
    path.write_text(row % '[{"role": "user", "content": "1 + 1"}]', encoding="utf-8")
    assert len(read(path, wanted).rows) == 1


@pytest.mark.parametrize(
    ("given", "flags", "expected"),
    [
        ("1 + 1 = ?", {"apply_chat_template": True}, PROMPT),
        (PROMPT, {"apply_chat_template": True}, PROMPT),
        ("1 + 1 = ?", {}, "1 + 1 = ?"),
        ("1 + 1 = ?", {"input_template": "Q: {}\nA:"}, "Q: 1 + 1 = ?\nA:"),
    ],
)
def test_a_prompt_is_what_openrlhf_makes_of_it(given: Any, flags: dict[str, Any], expected: Any) -> None:
    data = SimpleNamespace(**{"input_key": "q", "apply_chat_template": False, "input_template": None} | flags)
    assert prompt_of({"q": given}, data) == expected


def test_messages_need_a_chat_template() -> None:
    data = SimpleNamespace(input_key="q", apply_chat_template=False, input_template=None)
    with pytest.raises(
        RecipeError, match=r"--data\.input_key q: expected text, got .*--data\.apply_chat_template"
    ):
        prompt_of({"q": PROMPT}, data)


def test_text_and_messages_are_practised_in_their_own_form(tmp_path: Path) -> None:
    architecture = find_architecture("Qwen/Qwen3-4B").with_tokenizer([str(ROW), "Q: 1 + 1 = ?"])
    found = Data(pa.Table.from_pylist([ROW] * 4), pa.Table.from_pylist([ROW] * 4), "")
    trial = RewardTrial(0.0, float("nan"), (None,) * 4)
    lengths = {
        type(prompt): trial_of(architecture, found, trial, [prompt] * 4, (64, 1), tmp_path / name).prompt_length
        for name, prompt in (("text", "1 + 1 = ?"), ("messages", PROMPT))
    }
    assert lengths[str] == len(architecture.tokenizer.encode("1 + 1 = ?")) < lengths[list]
