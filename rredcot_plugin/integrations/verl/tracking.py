"""Histograms of credit and a table of the worst segments, in the trackers that verl has opened.

verl logs plain numbers only: ``Tracking.log`` hands one dict to every backend, and most take nothing but floats. So
this speaks with the backends themselves: ``trainer.logger.logger["tensorboard"].writer`` (a ``SummaryWriter``) and
``trainer.logger.logger["wandb"]`` (the module). verl has no public way to them; tests/contract/test_tracking.py
fails where they move. Other backends get nothing.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rredcot_plugin.adapter.trace_record import CreditedBatch
from rredcot_plugin.integrations.verl.tracker_payload import (
    Histogram,
    Sample,
    credit_numbers,
    histograms,
    worst_of_groups,
    worst_samples,
)
from rredcot_plugin.report.text import plain, short, signed

logger = logging.getLogger(__name__)

TABLE = "rredcot/credit/worst_segments"
DROPPED = "rredcot/credit/histogram_dropped"
COLUMNS = (
    "prompt (end)",
    "ground truth",
    "reward",
    "segment",
    "text",
    "credit",
    "value before",
    "value after",
)


class CreditTracker:
    """Collects the mini-batches of a step and writes them together.

    Written are the first step that this process trains and each that ``every`` divides; with ``every=0`` none. W&B
    keeps one value of a name a step, so the ``mini_batches`` of a step (verl's ``parameter_sync_step``) are pooled.
    """

    def __init__(self, every: int, mini_batches: int = 1) -> None:
        self.every = every
        self.mini_batches = mini_batches
        self._first: int | None = None
        self._step: int | None = None
        self._numbers: list[dict[str, np.ndarray]] = []
        self._samples: list[Sample] = []
        self._warned: set[str] = set()

    def take(self, tracking: Any, step: int, mini_batch: int, batch: CreditedBatch) -> None:
        """Take the credit of a mini-batch; after a step's last one write to those backends of ``tracking`` that can.

        To be called before verl logs the same step: W&B drops what comes for an earlier one.
        """
        if not self.is_due(tracking, step):
            return
        if step != self._step:
            self._step, self._numbers, self._samples = step, [], []
        self._numbers.append(credit_numbers(batch.credit))
        self._samples = worst_of_groups([*self._samples, *worst_samples(batch)])
        if mini_batch == self.mini_batches - 1:
            self._write(tracking, step)

    def is_due(self, tracking: Any, step: int) -> bool:
        """Whether this step is written, to any backend that can."""
        if self._first is None:
            self._first = step
        due = self.every > 0 and (step == self._first or step % self.every == 0)
        return due and bool(WRITERS.keys() & tracking.logger.keys())

    def _write(self, tracking: Any, step: int) -> None:
        """A backend that fails is logged, the first time, and tried again the next time: no reason to stop a run."""
        drawn, dropped = histograms(self._numbers)
        for name, write in WRITERS.items():
            if name not in tracking.logger:
                continue
            try:
                write(tracking.logger[name], step, drawn, self._samples, dropped)
            except OSError as error:
                if name not in self._warned:
                    logger.warning("rredcot: no histograms in %s: %s. Training goes on", name, error)
                self._warned.add(name)
        self._step, self._numbers, self._samples = None, [], []


def _to_tensorboard(
    adapter: Any, step: int, drawn: Mapping[str, Histogram], samples: Sequence[Sample], dropped: int
) -> None:
    for name, histogram in drawn.items():
        values = histogram.values
        adapter.writer.add_histogram_raw(
            name,
            min=float(values.min()),
            max=float(values.max()),
            num=values.size,
            sum=float(values.sum()),
            sum_squares=float(values @ values),
            # TensorBoard knows the right edges only; an empty bin in front says where the first one begins
            bucket_limits=histogram.edges.tolist(),
            bucket_counts=[0, *histogram.counts.tolist()],
            global_step=step,
        )
    adapter.writer.add_scalar(DROPPED, dropped, step)
    if samples:
        adapter.writer.add_text(TABLE, markdown_table(samples), step)


def _to_wandb(
    wandb: Any, step: int, drawn: Mapping[str, Histogram], samples: Sequence[Sample], dropped: int
) -> None:
    """One call with ``step`` and without ``commit``: W&B adds what verl logs of the same step to the same row."""
    found: dict[str, Any] = {
        name: wandb.Histogram(np_histogram=(histogram.counts, histogram.edges))
        for name, histogram in drawn.items()
    }
    found[DROPPED] = dropped
    if samples:
        found[TABLE] = wandb.Table(columns=list(COLUMNS), data=[_cells(sample) for sample in samples])
    try:
        wandb.log(found, step=step)
    except wandb.Error as error:
        raise OSError(str(error)) from error


WRITERS: dict[str, Callable[[Any, int, Mapping[str, Histogram], Sequence[Sample], int], None]] = {
    "tensorboard": _to_tensorboard,
    "wandb": _to_wandb,
}
"""The names are verl's, of ``trainer.logger``."""


def _cells(sample: Sample) -> list[str | float | None]:
    """A row of ``COLUMNS``, with empty cells where a number is not finite."""
    cells: list[str | float | None] = [
        sample.prompt,
        sample.ground_truth,
        sample.reward,
        sample.place,
        sample.text,
    ]
    cells += [sample.credit, sample.before, sample.after]
    return [None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in cells]


def markdown_table(samples: Sequence[Sample]) -> str:
    """The samples as a Markdown table in which no text is Markdown or HTML."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    for sample in samples:
        cells = [
            sample.prompt,
            sample.ground_truth,
            short(sample.reward),
            sample.place,
            sample.text,
            signed(sample.credit),
            plain(sample.before),
            plain(sample.after),
        ]
        lines.append("| " + " | ".join(map(inert, cells)) + " |")
    return "\n".join(lines)


def inert(text: str) -> str:
    """``text`` on one line, all but ASCII letters, digits and blanks as character references; line ends as ``⏎``.

    Neither Markdown nor HTML sees more than letters then, whatever a model wrote.

    >>> inert("<b>2*2\\n")
    '&#60;b&#62;2&#42;2 &#9166; '
    """
    one_line = text.replace("\n", " ⏎ ").replace("\t", " ")
    return re.sub(r"[^A-Za-z0-9 ]", lambda found: f"&#{ord(found[0])};", one_line)
