"""Credit of one chunk: what a training step does between sampling and the update, with a model at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rredcot_plugin.adapter.probe_plan import answer_starts, plan_metrics, plan_probes
from rredcot_plugin.adapter.process_rewards import placed
from rredcot_plugin.adapter.prompted_rollouts import PROMPT_TAIL, PromptedRollouts
from rredcot_plugin.adapter.trace_record import Asked, CreditedBatch, trace_record
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.offline.chunks import Chunk, too_long
from rredcot_plugin.offline.encode import EncodedRow, RowEncoder, step_rows
from rredcot_plugin.offline.input_columns import Row
from rredcot_plugin.offline.json_lines import BadLine
from rredcot_plugin.offline.model import Scorer
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.text.encoding import AnswerStyle, ProbeEncoder
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import REFERENCE, proposal_limits, scores_read
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.reference import build_references

ATTRIBUTIONS = frozenset({"attention", "gradient"})
SQUARES = "sum_pi_squared"
BRIDGE_ROOM = 32
"""Tokens that a bridge may take after the longest trace."""


def check_offline(config: RRedCoTConfig) -> None:
    """Raise ``ValueError`` for a value estimator that one causal model cannot feed, or a baseline that reads more than log-probs
    and entropies."""
    missing = scores_read(config.build_value_estimator()) - ATTRIBUTIONS
    if missing:
        raise ValueError(
            f"value_estimator={config.value_estimator!r} reads {', '.join(sorted(missing))}, which offline scoring does "
            "not have; use support, self_normalized, own_ratio, ground_truth, reference, confidence, siblings, attention "
            "or gradient"
        )
    if SQUARES in needs_of(config.build_baseline(log_probs=True)):
        raise ValueError(
            f"baseline={config.baseline!r} reads {SQUARES}, which offline scoring does not have; use least_variance, trace "
            "or value"
        )


@dataclass(frozen=True)
class ScoredChunk:
    """Records in the form of ``algorithm.rredcot.dump_dir``, with ``line``; lines left out; metrics of the chunk."""

    records: list[dict[str, Any]]
    left_out: list[BadLine]
    metrics: Mapping[str, float]


class ChunkScorer:
    """Scores chunks one after the other.

    Nothing but the calibrator passes from one chunk to the next, so scoring can go on from any chunk. The answer
    format is the chunk's own; where a chunk shows none, that of all rollouts (``observe``).
    """

    def __init__(self, rows: RowEncoder, config: RRedCoTConfig) -> None:
        self.encode_row = rows
        self.config = config
        self.encoder = ProbeEncoder(rows.tokenizer, config.bridge, config.terminator, config.max_probe_tokens)
        estimator = config.build_value_estimator()
        self.attributions = sorted(scores_read(estimator) & ATTRIBUTIONS)
        self.reads_references = config.proposals == REFERENCE or REFERENCE in proposal_limits(estimator)
        self._overall = (self.encoder.answer_format, self.encoder.thinking, self.encoder.opens)

    def observe(self, chunks: Sequence[Chunk]) -> None:
        """Look at all rollouts once: answer format, and whether the model thinks.

        Raises:
            ValueError: no prompt can be written, a tokenizer without a chat template, say.
        """
        tails, first_error = [], None
        for group in (group for chunk in chunks for group in chunk.groups):
            try:
                text, _ = self.encode_row.writer.write(group[0])
            except ValueError as error:
                first_error = first_error or ValueError(f"line {group[0].line}: {error}")
                continue
            tails.append(text[-4 * PROMPT_TAIL :])
        if first_error and not tails:
            raise first_error
        self.encoder.observe([row.response for chunk in chunks for row in chunk.rows], tails)
        self._overall = (self.encoder.answer_format, self.encoder.thinking, self.encoder.opens)

    def __call__(self, chunk: Chunk, scorer: Scorer, calibrator: OutcomeCalibrator) -> ScoredChunk:
        """Segments, probes and credit of the chunk's rows; those that cannot be encoded are left out."""
        encoded, left_out = self._encode(chunk.rows, scorer)
        if not encoded:
            return ScoredChunk([], left_out, {})
        tokens = [row.tokens for row in encoded]
        batch = self._with_signals(placed(step_rows(encoded), self.encode_row.table)[0], encoded, scorer)
        # as inside verl, where segments must be known before the pass that gives entropies
        before = dataclasses.replace(batch.rollouts, entropies=None)
        levels = self.config.build_levels(before)
        segments = levels[-1]
        self.encoder.answer_format, self.encoder.thinking, self.encoder.opens = self._overall
        asking = dataclasses.replace(batch, rollouts=before)
        style = AnswerStyle.of(before.texts or [], batch.prompt_tails)
        plan = plan_probes(asking, segments, self.config, self.encoder, calibrator.lowest, style)
        log_probs = scorer.probes(tokens, plan.specs)
        rollouts = dataclasses.replace(
            batch.rollouts, token_scores=self._token_scores(batch, segments, tokens, scorer)
        )
        credit = assign_credit(
            rollouts,
            self.config,
            segments=segments,
            coarse=levels[0],
            probed=plan.probed(log_probs, length_normalize=self.config.length_normalize),
            calibrator=calibrator,
        )
        asked, keeps = Asked(plan, log_probs), self.config.keeps_turn_rewards
        shown = CreditedBatch(batch, rollouts, credit, self.encode_row.table, asked, keeps=keeps)
        records = []
        for i, row in enumerate(encoded):
            record = trace_record(row.row.step, i, shown)
            records.append({**record, "uid": row.row.group, "line": row.row.line})
        return ScoredChunk(records, left_out, {**plan_metrics(plan, batch.tokens), **credit.metrics})

    def _encode(self, rows: Sequence[Row], scorer: Scorer) -> tuple[list[EncodedRow], list[BadLine]]:
        allowed = _positions(scorer.model) - self.config.max_probe_tokens - BRIDGE_ROOM
        encoded: list[EncodedRow] = []
        left_out: list[BadLine] = []
        for row in rows:
            try:
                found = self.encode_row(row)
                if self.reads_references:
                    build_references([row.references], 1, 1)  # so that a broken one is told with its line
            except ValueError as error:
                left_out.append(BadLine(row.line, str(error)))
                continue
            length = len(found.prompt) + len(found.response)
            if length > allowed:
                left_out.append(too_long(row, length, allowed))
            else:
                encoded.append(found)
        return encoded, left_out

    def _with_signals(
        self, batch: PromptedRollouts, encoded: Sequence[EncodedRow], scorer: Scorer
    ) -> PromptedRollouts:
        """The batch with log-probs and entropies of the response tokens."""
        found = scorer.signals([row.tokens for row in encoded], [len(row.prompt) for row in encoded])
        log_probs, entropies = (torch.zeros(batch.rollouts.response_mask.shape) for _ in range(2))
        for i, (own_log_probs, own_entropies) in enumerate(found):
            log_probs[i, : len(own_log_probs)] = own_log_probs.nan_to_num(0.0, 0.0, 0.0)
            entropies[i, : len(own_entropies)] = own_entropies.nan_to_num(0.0, 0.0, 0.0)
        rollouts = dataclasses.replace(batch.rollouts, log_probs=log_probs, entropies=entropies)
        return dataclasses.replace(batch, rollouts=rollouts)

    def _token_scores(
        self, batch: PromptedRollouts, segments: Segments, tokens: Sequence[list[int]], scorer: Scorer
    ) -> dict[str, torch.Tensor]:
        """``attention`` and ``gradient`` of the response tokens, NaN where a trace has one segment only."""
        scores = {kind: torch.full(batch.rollouts.response_mask.shape, torch.nan) for kind in self.attributions}
        answers = answer_starts(batch, segments)
        for kind, table in scores.items():
            for i, row in enumerate(tokens):
                if answers[i] >= 0:
                    found = scorer.attribution(kind, row, answers[i])
                    table[i, : batch.lengths[i]] = found[len(batch.prompts[i]) :]
        return scores


def _positions(model: Any) -> int:
    """Tokens that a model can place; a model that names no limit has none."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 60)
