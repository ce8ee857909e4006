"""Which probes a batch needs, and their log-probs put back where they belong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rredcot_plugin.answers import THINK_END, AnswerFormat
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl.batch import StepRows
from rredcot_plugin.metrics import share
from rredcot_plugin.probes.layout import ProbeSpec
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.proposals import FROM_GROUND_TRUTH, NOTHING, Proposals, build_proposals


@dataclass(frozen=True)
class ProbePlan:
    """``specs[b]`` are the probes of active row b; ``places[b]`` the (state, proposal) each one stands for."""

    specs: list[list[ProbeSpec]]
    places: list[list[tuple[int, int]]]
    proposals: Proposals
    segments: Segments
    metrics: dict[str, float]

    def probed(self, log_probs: Sequence[Sequence[float]], *, length_normalize: bool) -> Probed | None:
        """Log-probs of the probes, in the order of ``specs``, as the estimator's (B, S, N) tensor.

        A proposal whose log-prob is not a number at some state is dropped for that row. None if no row has
        a proposal.
        """
        valid = self.proposals.valid.clone()
        log_pi = torch.zeros(*self.segments.exists.shape, valid.shape[1])
        for row, (places, numbers) in enumerate(zip(self.places, log_probs, strict=True)):
            for (state, proposal), number, spec in zip(places, numbers, self.specs[row], strict=True):
                counted = len(spec[1]) - spec[2]
                log_pi[row, state, proposal] = number / counted if length_normalize else number
                valid[row, proposal] &= number <= 1e-4  # false for NaN
        if not bool(valid.any()):
            return None
        return Probed(log_pi.clamp(max=0.0), self.proposals.utility, valid, self.segments.num_segments)


def plan_probes(rows: StepRows, segments: Segments, config: RRedCoTConfig, encoder: ProbeEncoder) -> ProbePlan:
    """Put every proposal behind every boundary of every trace; looks at nothing but the batch."""
    rollouts = rows.rollouts
    texts = rollouts.texts or []
    encoder.observe(texts, rows.prompt_tails)
    estimator = config.build_value_estimator()
    proposals = build_proposals(
        [_extract(encoder.answer_format, text) for text in texts],
        rollouts.outcomes,
        rollouts.group_ids,
        rollouts.ground_truths,
        proposes=estimator.proposes,
        allowed=config.proposals,
        leave_one_out=config.leave_one_out,
        max_proposals=estimator.max_proposals,
    )
    starts, first_state = segments.starts.tolist(), 1 if config.prior_from_group else 0
    valid, specs, places = proposals.valid.clone(), [], []
    for row, answers in enumerate(proposals.answers):
        states = range(first_state, int(segments.num_segments[row]))
        prefix = [_prefix(rows, row, starts[row][state]) for state in states]
        row_specs: list[ProbeSpec] = []
        row_places: list[tuple[int, int]] = []
        for column, answer in enumerate(answers):
            encoded = [encoder.encode(encoder.bridge_after(text), answer) for text in prefix]
            if not all(encoded):  # longer than max_probe_tokens
                valid[row, column] = False
                continue
            for state, probe in zip(states, encoded, strict=True):
                assert probe is not None
                row_specs.append((len(rows.prompts[row]) + starts[row][state], list(probe[0]), probe[1]))
                row_places.append((state, column))
        specs.append(row_specs)
        places.append(row_places)
    proposed = dataclasses.replace(proposals, valid=valid)
    return ProbePlan(specs, places, proposed, segments, _plan_metrics(rows, proposals, proposed, specs))


def _extract(answer_format: AnswerFormat, text: str) -> str | None:
    """The final answer; where the model thinks, only what stands behind the end of the thinking counts."""
    return answer_format.extract(text.rpartition(THINK_END)[2])


def _prefix(rows: StepRows, row: int, start: int) -> str:
    """The response's text before column ``start``."""
    rollouts = rows.rollouts
    assert rollouts.texts is not None and rollouts.token_offsets is not None
    before = int(rollouts.response_mask[row, :start].sum())
    spans = rollouts.token_offsets[row]
    return rollouts.texts[row][: int(spans[before - 1][1])] if before else ""


def _plan_metrics(
    rows: StepRows, found: Proposals, kept: Proposals, specs: list[list[ProbeSpec]]
) -> dict[str, float]:
    source = torch.tensor(found.source)
    tokens = sum(len(ids) for row in specs for _, ids, _ in row)
    trunk = sum(len(p) for p in rows.prompts) + sum(rows.lengths)
    dropped = found.valid & ~kept.valid
    return {
        "rredcot/probes/per_trace/mean": sum(map(len, specs)) / max(1, len(specs)),
        "rredcot/probes/token_overhead/mean": tokens / max(1, trunk),
        "rredcot/probes/proposals/mean": float(kept.valid.sum(1).float().mean()),
        "rredcot/fallback/ground_truth/mean": share(source == FROM_GROUND_TRUTH),
        "rredcot/fallback/no_proposal/mean": share(source == NOTHING),
        "rredcot/fallback/answer_too_long/mean": share(dropped[found.valid]),
    }
