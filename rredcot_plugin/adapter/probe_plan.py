"""Which probes a batch needs, and their log-probs put back where they belong."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.metrics import share
from rredcot_plugin.credit.turn_rewards import separate
from rredcot_plugin.probes.layout import ProbeSpec, pack, packed_tokens, split_packs, unpack
from rredcot_plugin.text.encoding import AnswerStyle, EncodedProbe, ProbeEncoder
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import FROM_OTHERS, REFERENCE, Probed, proposal_limits
from rredcot_plugin.values.proposals import (
    FROM_GROUND_TRUTH,
    NOTHING,
    Proposals,
    build_proposals,
    floor_of,
)
from rredcot_plugin.values.reference import build_references, reference_answers

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

KIND, STATE, COLUMN, COUNTED = range(4)
"""What stands in a row of ``ProbePlan.places``; the kind is its number among ``ProbePlan.proposals``."""

NO_PLACES = torch.zeros(0, 4, dtype=torch.int64)


@dataclass(frozen=True)
class ProbePlan:
    """``packed[b]`` are the probes of row b (``probes.layout.pack``; where its session has several outputs, one pack
    of each, one after another), ``places[b]`` (P_b, 4) what each one stands for: the proposal of a column of a kind,
    at a state; and how many of its tokens count. ``tokens`` are those of all probes, bridges included. ``packed`` is
    empty once the probes are where they are needed.

    Tensors, not objects: a big batch has millions of probes, and sends them between processes. ``proposals`` by
    kind; the answers among them that are too long to be probed are no longer valid there, but still count as
    ``offered`` (B, N).
    """

    packed: list[torch.Tensor]
    places: list[torch.Tensor]
    proposals: dict[str, Proposals]
    offered: dict[str, torch.Tensor]
    segments: Segments
    tokens: int

    @property
    def size(self) -> int:
        """Probes of the batch."""
        return sum(map(len, self.places))

    @property
    def specs(self) -> list[list[ProbeSpec]]:
        """The probes of every output, row by row, decoded at each call."""
        return [unpack(pack) for vector in self.packed for pack in split_packs(vector)]

    def probed(
        self, log_probs: Sequence[Sequence[float] | torch.Tensor], *, length_normalize: bool
    ) -> dict[str, Probed]:
        """Log-probs of the probes of every row, in the order of ``places``, as (B, S, N) tensors, by kind of proposal.

        A proposal whose log-prob is not a number at some state is dropped for that row; a kind without any
        proposal is left out.
        """
        rows, places, found = self._numbers(log_probs, length_normalize)
        probed = {}
        for number, (kind, proposals) in enumerate(self.proposals.items()):
            own = places[:, KIND] == number
            row, state, column = rows[own], places[own, STATE], places[own, COLUMN]
            valid = proposals.valid.clone()
            log_pi = torch.zeros(*self.segments.exists.shape, valid.shape[1])
            log_pi[row, state, column] = found[own]
            wrong = ~(found[own] <= 1e-4)  # true for NaN
            valid[row[wrong], column[wrong]] = False
            if bool(valid.any()):
                counts = self.segments.num_segments
                probed[kind] = Probed(log_pi.clamp(max=0.0), proposals.utility, valid, counts, proposals.log_q)
        return probed

    def _numbers(
        self, log_probs: Sequence[Sequence[float] | torch.Tensor], length_normalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row (P,), place (P, 4) and log-prob (P,) of all probes of the batch.

        Raises:
            ValueError: a row without a log-prob for each of its probes.
        """
        counts = [len(own) for own in self.places]
        if [len(numbers) for numbers in log_probs] != counts:
            raise ValueError(
                f"log_probs: expected one for each probe, {counts}, got {[len(n) for n in log_probs]}"
            )
        none = torch.zeros(0)
        found = torch.cat([none, *(torch.as_tensor(numbers, dtype=torch.float32) for numbers in log_probs)])
        places = torch.cat([NO_PLACES, *self.places])
        rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
        return rows, places, found / places[:, COUNTED] if length_normalize else found


def plan_probes(
    rows: PromptedRollouts,
    segments: Segments,
    config: RRedCoTConfig,
    encoder: ProbeEncoder,
    lowest: float | None = None,
    style: AnswerStyle | None = None,
) -> ProbePlan:
    """Put every proposal after every boundary of every trace; looks at nothing but the batch, ``lowest`` of past steps
    (``floor_of``), and how their responses answered (``ProbeEncoder.due``) unless ``style`` says it."""
    encoder.follow(style or encoder.due(AnswerStyle.of(rows.rollouts.texts or [], rows.prompt_tails)))
    floor = floor_of(redistributed(rows.rollouts, config), lowest)
    return place_probes(rows, segments, config, encoder, floor)


def redistributed(rollouts: Rollouts, config: RRedCoTConfig) -> Float[Tensor, " B"]:
    """What each answer is worth: the outcome, without rewards on the way where these stay on their own segments."""
    return (separate(rollouts)[0] if config.keeps_turn_rewards else rollouts).outcomes


def place_probes(
    rows: PromptedRollouts, segments: Segments, config: RRedCoTConfig, encoder: ProbeEncoder, floor: torch.Tensor
) -> ProbePlan:
    """The same for whole groups of a batch, by an encoder that has seen all of it; ``floor`` (B,) as in
    ``build_proposals``."""
    limits = proposal_limits(config.build_value_estimator())
    worth = redistributed(rows.rollouts, config) if limits else floor
    found = {
        kind: _propose(kind, limit, rows.rollouts, config, encoder, worth, floor) for kind, limit in limits.items()
    }
    valid = {kind: proposals.valid.clone() for kind, proposals in found.items()}
    packed, places, tokens = [], [], 0
    first = 1 if config.prior_from_group else 0
    starts, counts = segments.starts.tolist(), segments.num_segments.tolist()
    for row in range(len(rows.prompts)):
        # of one row at a time: their prefixes are long
        asked = starts[row][: counts[row]] if any(proposals.answers[row] for proposals in found.values()) else []
        states = _States(rows, row, asked, first, encoder)
        specs: list[list[ProbeSpec]] = [[] for _ in rows.outputs_of(row)]
        at: list[list[tuple[int, int, int, int]]] = [[] for _ in specs]
        for kind, (name, proposals) in enumerate(found.items()):
            for column in range(len(proposals.answers[row])):
                encoded = states.encode(encoder, proposals, column)
                if not all(encoded):  # longer than max_probe_tokens
                    valid[name][row, column] = False
                    continue
                for state, output, boundary, probe in zip(*states.places, encoded, strict=True):
                    assert probe is not None
                    ids, skip = probe
                    specs[output].append((boundary, ids, skip))
                    at[output].append((kind, state, column, len(ids) - skip))
        packs = list(map(pack, specs))
        packed.append(torch.cat(packs))
        places.append(torch.tensor([place for own in at for place in own], dtype=torch.int64).reshape(-1, 4))
        tokens += sum(map(packed_tokens, packs))
    kept = {kind: dataclasses.replace(proposals, valid=valid[kind]) for kind, proposals in found.items()}
    offered = {kind: proposals.valid for kind, proposals in found.items()}
    return ProbePlan(packed, places, kept, offered, segments, tokens)


def answer_starts(rows: PromptedRollouts, segments: Segments) -> list[int]:
    """Where the answer of each row begins, in tokens from the start of the prompt of the output that it stands in: at the
    row's last segment. One number an output; −1 for outputs without it, and where the row has one segment only."""
    firsts, counts = segments.starts.tolist(), segments.num_segments.tolist()
    found = []
    for row, count in enumerate(counts):
        outputs = rows.outputs_of(row)
        last = output_at(outputs, firsts[row][count - 1]) if count > 1 else -1
        found += [
            len(output.prompt) + firsts[row][count - 1] - output.start if number == last else -1
            for number, output in enumerate(outputs)
        ]
    return found


def output_at(outputs: Sequence[Output], column: int) -> int:
    """The position among the outputs of a row of the one that a column belongs to.

    >>> outputs = [Output(torch.arange(3), 0, 4), Output(torch.arange(9), 5, 2)]
    >>> [output_at(outputs, column) for column in (0, 3, 5, 6)]
    [0, 0, 1, 1]
    """
    return bisect_right([output.start for output in outputs], column) - 1


class _States:
    """The states of a row that are probed. ``places``: their numbers, the positions of their outputs, and their boundaries
    (tokens of that output, prompt included); and what the text of that output before them and the bridge that continues it
    are."""

    def __init__(
        self, rows: PromptedRollouts, row: int, starts: list[int], first: int, encoder: ProbeEncoder
    ) -> None:
        self.row = row
        outputs, columns = rows.outputs_of(row), starts[first:]
        own = [output_at(outputs, column) for column in columns]
        boundaries = [
            len(outputs[i].prompt) + column - outputs[i].start for i, column in zip(own, columns, strict=True)
        ]
        self.places = list(range(first, len(starts))), own, boundaries
        self.prefixes = _prefixes(rows, row, [outputs[i].start for i in own], columns)
        self.tails = [outputs[i].tail for i in own]
        self.bridges = list(map(encoder.bridge_after, self.prefixes, self.tails))

    def encode(self, encoder: ProbeEncoder, proposals: Proposals, column: int) -> list[EncodedProbe | None]:
        """The probes of one proposal at every state; None where one is too long."""
        answer = proposals.answers[self.row][column]
        if proposals.solutions is None:
            return [encoder.encode(bridge, answer) for bridge in self.bridges]
        solution = proposals.solutions[self.row][column]
        before = zip(self.prefixes, self.tails, strict=True)
        return [encoder.encode_reference(prefix, solution, answer, tail) for prefix, tail in before]


def _propose(
    kind: str,
    limit: int,
    rollouts: Rollouts,
    config: RRedCoTConfig,
    encoder: ProbeEncoder,
    worth: torch.Tensor,
    floor: torch.Tensor,
) -> Proposals:
    """The proposals of one kind (``ValueEstimator.proposes``); ``worth`` (B,) of each response as an answer."""
    if kind == REFERENCE or (kind in FROM_OTHERS and config.proposals == "reference"):
        references = build_references(rollouts.references, rollouts.batch_size, limit)
        if kind == REFERENCE:
            return references
        return reference_answers(references, encoder.answer_of)
    return build_proposals(
        [encoder.answer_of(text) for text in rollouts.texts or []],
        worth,
        rollouts.group_ids,
        rollouts.ground_truths,
        proposes=kind,
        allowed=config.proposals,
        leave_one_out=config.leave_one_out,
        max_proposals=limit,
        floor=floor,
    )


def _prefixes(rows: PromptedRollouts, row: int, firsts: list[int], columns: list[int]) -> list[str]:
    """The response's text before each of some columns at which segments begin, a tool's answer included, from the output on
    that begins at the column ``firsts``."""
    rollouts = rows.rollouts
    assert rollouts.texts is not None and rollouts.token_offsets is not None
    before = torch.nn.functional.pad(rollouts.response_mask[row].cumsum(0), (1, 0))
    spans, text = rollouts.token_offsets[row], rollouts.texts[row]
    states = zip(before[firsts].tolist(), before[columns].tolist(), strict=True)
    return [text[int(spans[earlier][0]) if earlier else 0 : int(spans[count][0])] for earlier, count in states]


def plan_metrics(plan: ProbePlan, tokens: int) -> dict[str, float]:
    """Probes a trace, their tokens over those of the traces (``tokens``, prompts included), and where proposals came
    from."""
    numbers = {
        "rredcot/probes/per_trace/mean": plan.size / max(1, len(plan.places)),
        "rredcot/probes/token_overhead/mean": plan.tokens / max(1, tokens),
    }
    kept = plan.proposals
    if not kept:
        return numbers
    source = torch.tensor([proposals.source for proposals in kept.values()])
    too_long = torch.cat([(offered & ~kept[kind].valid)[offered] for kind, offered in plan.offered.items()])
    return numbers | {
        "rredcot/probes/proposals/mean": sum(float(k.valid.sum(1).float().mean()) for k in kept.values()),
        "rredcot/fallback/ground_truth/mean": share(source == FROM_GROUND_TRUTH),
        "rredcot/fallback/no_proposal/mean": share(source == NOTHING),
        "rredcot/fallback/answer_too_long/mean": share(too_long),
    }
