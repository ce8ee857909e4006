"""A hub that cannot be reached is told at once; a mistyped name otherwise costs minutes of retries."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from transformers import AutoTokenizer

from rredcot_plugin.offline.hub import hub_answers
from rredcot_plugin.offline.loading import Placement, load_model, load_tokenizer

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What stands at the hub's address, with no proxy on the way."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_an_open_port_is_an_answer_and_a_closed_one_is_not(listening: socket.socket) -> None:
    assert hub_answers()
    listening.close()
    assert not hub_answers()


def test_offline_mode_asks_nobody(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub_answers()


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_behind_a_proxy_the_hub_may_answer(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    listening.close()
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert hub_answers()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not hub_answers()


def test_a_name_that_nobody_has_is_told_with_what_was_looked_for(listening: socket.socket) -> None:
    listening.close()
    looked_for = "no such folder, not complete in the Hugging Face cache, and the hub does not answer"
    with pytest.raises(ValueError, match=f"model=nobody/nothing: its tokenizer cannot be loaded: {looked_for}"):
        load_tokenizer("nobody/nothing")
    with pytest.raises(ValueError, match=f"model=nobody/nothing: cannot be loaded as a causal LM: {looked_for}"):
        load_model("nobody/nothing", Placement("cpu", "float32"))


def test_a_folder_may_name_what_the_hub_has(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An adapter names its base model, a configuration its code."""
    asked: list[object] = []
    monkeypatch.setattr(
        AutoTokenizer, "from_pretrained", lambda *_, local_files_only, **__: asked.append(local_files_only)
    )
    load_tokenizer(str(tmp_path))
    listening.close()
    load_tokenizer(str(tmp_path))
    assert asked == [False, False]


def test_what_else_is_wrong_with_a_cached_model_is_told_without_a_network(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **options: object) -> None:
        assert options["local_files_only"]
        raise ValueError("it needs trust_remote_code\nmore")

    listening.close()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(ValueError, match=r"its tokenizer cannot be loaded: it needs trust_remote_code$"):
        load_tokenizer("somebody/cached")
