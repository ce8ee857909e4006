"""A run that goes on from a checkpoint probes in the style in which the step before the checkpoint answered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.state import STYLE, state_of, take_up
from rredcot_plugin.text.encoding import AnswerStyle, ProbeEncoder
from rredcot_plugin.tiny.reasoner import build_tokenizer

TOKENIZER = build_tokenizer()
HASH, NOTHING, PHRASE = (
    AnswerStyle(Counter(votes), 8, 0, 0) for votes in ({"hash": 7, "phrase": 1}, {}, {"phrase": 8})
)
THOUGHT = AnswerStyle(Counter(), 8, 8, 8)


class Run:
    """What of a run lives on in its checkpoints."""

    def __init__(self) -> None:
        self.calibrator = rr.RRedCoTConfig().build_calibrator()
        self.encoder = ProbeEncoder(TOKENIZER)

    def step(self, style: AnswerStyle) -> tuple[str, bool, bool]:
        self.encoder.follow(self.encoder.due(style))
        return self.encoder.answer_format.bridge, self.encoder.thinking, self.encoder.opens

    def saved(self, folder: Path) -> dict[str, Any]:
        """Through a file, without pickle of anything but tensors, texts and numbers."""
        torch.save(state_of(self.calibrator, self.encoder), folder / "state.pt")
        loaded: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
        return loaded


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    "styles",
    [
        (HASH, HASH, NOTHING, PHRASE, NOTHING),
        (NOTHING, THOUGHT, HASH, PHRASE, HASH),
        (THOUGHT, HASH, *[NOTHING] * 3),
    ],
)
def test_bridges_of_a_resumed_run_are_those_of_an_uninterrupted_one(
    styles: tuple[AnswerStyle, ...], at: int, tmp_path: Path
) -> None:
    whole, first, second = Run(), Run(), Run()
    expected = [whole.step(style) for style in styles]
    found = [first.step(style) for style in styles[:at]]
    take_up(first.saved(tmp_path), second.calibrator, second.encoder)
    assert found + [second.step(style) for style in styles[at:]] == expected


def test_a_checkpoint_without_a_style_is_taken_up(tmp_path: Path) -> None:
    run, fresh = Run(), Run()
    run.step(HASH)
    state = run.saved(tmp_path)
    assert STYLE in state
    take_up({name: own for name, own in state.items() if name != STYLE}, fresh.calibrator, fresh.encoder)
    assert fresh.encoder == ProbeEncoder(TOKENIZER)


def test_a_format_that_this_version_does_not_know_leaves_the_default(tmp_path: Path) -> None:
    run = Run()
    run.encoder.load_state_dict({**run.encoder.state_dict(), "format": "of another version"})
    assert run.encoder.answer_format == ProbeEncoder(TOKENIZER).answer_format
