"""One trace with its credit as a plain mapping: what dumps and `rredcot score` write, and reports read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from rredcot_plugin.adapter.probe_plan import ProbePlan, output_at
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.credit.turn_rewards import separate
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Credit, Rollouts

MAX_PROMPT_TOKENS = 2048
"""Of a longer prompt only its end is written."""

MAX_PROPOSALS, MAX_PROPOSAL_CHARACTERS = 8, 200
"""Of a trace, the proposals that were ever most probable are written, and of a longer one only its start."""


MAX_OBSERVATION_CHARACTERS = 4000
"""Of what a tool answered between two segments; of a longer answer its start and its end are written."""


@dataclass(frozen=True)
class Asked:
    """The probes of a batch and what came back: ``log_probs`` of every row, in the order of its probes, in nats."""

    plan: ProbePlan
    log_probs: Sequence[Sequence[float] | torch.Tensor]

    def of(self, row: int, states: int) -> tuple[list[dict[str, Any]], list[list[float | None]]]:
        """The proposals of a row with what each is worth, most probable first, and their probabilities at each of its
        ``states`` states, None where one was not probed.

        A probability is that of the whole answer and its terminator, whatever ``length_normalize`` says.
        """
        found = torch.full((len(self.plan.proposals), states, self._width), torch.nan)
        kind, state, column, _ = self.plan.places[row].T
        found[kind, state, column] = torch.as_tensor(self.log_probs[row], dtype=torch.float32).cpu().exp()
        most = found.nan_to_num(-1.0).amax(dim=1)
        best = [(k, n) for k, n in (most >= 0).nonzero().tolist()]
        best.sort(key=lambda at: -float(most[at]))
        kinds = list(self.plan.proposals.items())
        named = []
        for k, n in best[:MAX_PROPOSALS]:
            name, proposals = kinds[k]
            text = proposals.answers[row][n][:MAX_PROPOSAL_CHARACTERS]
            named.append({"text": text, "kind": name, "utility": _number(float(proposals.utility[row, n]))})
        by_state = [[_significant(float(found[k, s, n])) for k, n in best[:MAX_PROPOSALS]] for s in range(states)]
        return named, by_state

    @property
    def _width(self) -> int:
        return max(proposals.valid.shape[1] for proposals in self.plan.proposals.values())


@dataclass(frozen=True)
class CreditedBatch:
    """A batch with its credit, and what it takes to show it to people.

    ``rollouts`` are those that ``credit`` was assigned to; ``rows`` has the prompts and texts of the same rows.
    ``asked`` is None where nothing was probed. ``sessions`` are the host's names of the rows, None where it has none.
    ``keeps`` says that rewards on the way stay where they are, so that values are of what is still to come.
    """

    rows: PromptedRollouts
    rollouts: Rollouts
    credit: Credit
    table: TokenBytes
    asked: Asked | None = None
    sessions: Sequence[str] | None = None
    keeps: bool = False

    @cached_property
    def paid(self) -> torch.Tensor | None:
        """(B, S): rewards on the way of each segment; None where there are none, or all is redistributed."""
        on_the_way = separate(self.rollouts)[1] if self.keeps else None
        return None if on_the_way is None else sum_per_segment(on_the_way, self.credit.segments)

    def prompt(self, row: int, most: int) -> str:
        """The last ``most`` tokens of a prompt as text."""
        return self.text(self.rows.prompts[row][-most:])

    def text(self, token_ids: torch.Tensor) -> str:
        return self.table.align(token_ids.cpu().numpy())[0]

    def ground_truth(self, row: int) -> str | None:
        """The ground truth as text, None where there is none."""
        truths = self.rollouts.ground_truths
        return None if truths is None or truths[row] is None else str(truths[row])


def trace_record(step: int, row: int, batch: CreditedBatch) -> dict[str, Any]:
    """Row ``row`` of a batch as JSON knows it; where it was probed, also ``proposals`` and, at the state before each
    segment, their ``probabilities``, which show where a value comes from. A segment's ``paid`` is what stays on it of rewards on
    the way, of which values of later states are not. ``session`` is the host's name of the row; where it
    is several outputs, ``outputs`` has their numbers and prompts, and every segment the number of its ``output``."""
    record: dict[str, Any] = {
        "step": step,
        "uid": str(batch.rollouts.group_ids[row]),
        "prompt": batch.prompt(row, MAX_PROMPT_TOKENS),
        "ground_truth": batch.ground_truth(row),
        "reward": _number(float(batch.rollouts.outcomes[row])),
        "segments": _segments(row, batch),
    }
    if batch.sessions is not None:
        record["session"] = batch.sessions[row]
    if batch.paid is not None and bool(batch.paid[row].any()):
        for number, segment in enumerate(record["segments"]):
            segment["paid"] = _number(float(batch.paid[row, number]))
    outputs = batch.rows.outputs_of(row)
    if len(outputs) > 1:
        record["outputs"] = [
            {"number": own.number, "prompt": batch.text(own.prompt[-MAX_PROMPT_TOKENS:])} for own in outputs
        ]
        starts = batch.credit.segments.starts[row].tolist()
        for segment, start in zip(record["segments"], starts, strict=False):  # starts are padded
            segment["output"] = outputs[output_at(outputs, start)].number
    if batch.asked is None or not len(batch.asked.plan.places[row]):
        return record
    record["proposals"], by_state = batch.asked.of(row, len(record["segments"]))
    for segment, probabilities in zip(record["segments"], by_state, strict=True):
        segment["probabilities"] = probabilities
    return record


def _segments(row: int, batch: CreditedBatch) -> list[dict[str, Any]]:
    """Text, value before it, redistributed reward and advantage (the mean over its tokens) of each segment; and what the
    model did not write: an ``observation`` before the segment, ``observed`` characters [from, to) of its text."""
    credit, mask = batch.credit, batch.rollouts.response_mask[row]
    columns = mask.nonzero()[:, 0].tolist()
    ids, tokens = credit.segments.segment_ids[row][mask], credit.advantages[row][mask].tolist()
    text, spans = batch.rows.text_of(row, batch.table)
    numbers = torch.arange(int(credit.segments.num_segments[row]) + 1, device=ids.device)
    begins = torch.searchsorted(ids.contiguous(), numbers).tolist()
    found = []
    for segment, (begin, end) in enumerate(pairwise(begins)):
        first, last = int(spans[begin][0]), int(spans[end - 1][1])
        gaps = [i for i in range(begin + 1, end) if columns[i] > columns[i - 1] + 1]
        found.append(
            {
                "text": text[first:last],
                "tokens": end - begin,
                "value": _number(float(credit.values[row, segment])),
                "reward": _number(float(credit.segment_rewards[row, segment])),
                "advantage": _number(sum(tokens[begin:end]) / (end - begin)),
            }
            | _unless_empty("observation", _before(begin, columns, text, spans))
            | _unless_empty("observed", [[int(spans[i - 1][1]) - first, int(spans[i][0]) - first] for i in gaps])
        )
    return found


def _before(token: int, columns: list[int], text: str, spans: Any) -> str:
    """What stands between a token of the model's and the one before it, shortened; nothing where they are neighbours."""
    if columns[token] == (columns[token - 1] + 1 if token else 0):
        return ""
    between = text[int(spans[token - 1][1]) if token else 0 : int(spans[token][0])]
    if len(between) <= MAX_OBSERVATION_CHARACTERS:
        return between if between.strip() else ""
    half = MAX_OBSERVATION_CHARACTERS // 2
    left_out = f"{len(between) - 2 * half:,} characters left out"
    return f"{between[:half]}\n… {left_out} …\n{between[-half:]}"


def _unless_empty(key: str, found: Any) -> dict[str, Any]:
    return {key: found} if found else {}


def _number(x: float) -> float | None:
    """JSON has no NaN."""
    return round(x, 6) if abs(x) != float("inf") and x == x else None


def _significant(x: float) -> float | None:
    """Three digits, so that small probabilities keep their size."""
    return float(f"{x:.3g}") if x == x else None
