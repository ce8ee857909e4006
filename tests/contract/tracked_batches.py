"""Batches for the tests of trackers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.trace_record import CreditedBatch, trace_record
from rredcot_plugin.integrations.verl.tracking import CreditTracker
from rredcot_plugin.report.traces import Trace, read_trace
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
        return [read_trace(trace_record(1, row, self.shown())) for row in range(self.rollouts.batch_size)]

    def shown(self, **changes: Any) -> CreditedBatch:
        return dataclasses.replace(CreditedBatch(self.rows, self.rollouts, self.credit, BYTES), **changes)


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
    tracker.take(tracking, step, mini_batch, given.shown())
