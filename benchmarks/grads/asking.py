"""Probes and attributions of many steps of the same prompts, each distinct one asked of the model once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lab.rollouts import Actor

from rredcot_plugin.adapter.probe_plan import answer_starts, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import Probed

PROBED_ROWS = 32


@dataclass
class Asked:
    """What the model has been asked about the prefixes of a family."""

    actor: Actor
    _probes: dict[Any, float] = field(default_factory=dict, repr=False)
    _scores: dict[Any, torch.Tensor] = field(default_factory=dict, repr=False)

    def probed(self, rows: PromptedRollouts, segments: Segments, config: RRedCoTConfig) -> Mapping[str, Probed]:
        """As a training step would have it."""
        encoder = ProbeEncoder(self.actor.tokenizer, config.bridge, config.terminator, config.max_probe_tokens)
        plan = plan_probes(rows, segments, config, encoder)
        tokens, specs = tokens_of(rows), plan.specs
        keys = [
            [(tuple(tokens[row][:at]), tuple(ids), skip) for at, ids, skip in own] for row, own in enumerate(specs)
        ]
        new: dict[Any, tuple[int, Any]] = {}
        for row, own in enumerate(keys):
            for key, spec in zip(own, specs[row], strict=True):
                if key not in self._probes:
                    new.setdefault(key, (row, spec))
        self._ask(tokens, new)
        found = [[self._probes[key] for key in own] for own in keys]
        return plan.probed(found, length_normalize=config.length_normalize)

    def _ask(self, tokens: list[list[int]], new: dict[Any, tuple[int, Any]]) -> None:
        by_row: dict[int, list[Any]] = {}
        for key, (row, _) in new.items():
            by_row.setdefault(row, []).append(key)
        rows = list(by_row)
        for first in range(0, len(rows), PROBED_ROWS):
            part = rows[first : first + PROBED_ROWS]
            specs = [[new[key][1] for key in by_row[row]] for row in part]
            found = self.actor.scorer.probes([tokens[row] for row in part], specs)
            for row, numbers in zip(part, found, strict=True):
                self._probes |= dict(zip(by_row[row], numbers, strict=True))

    def scored(self, rows: PromptedRollouts, segments: Segments, kind: str) -> Rollouts:
        """The rollouts with the token scores of ``attention`` or ``gradient``."""
        tokens, table = tokens_of(rows), torch.full(rows.rollouts.token_ids.shape, torch.nan)
        for row, start in enumerate(answer_starts(rows, segments)):
            if start >= 0:
                key = (kind, tuple(tokens[row]), start)
                if key not in self._scores:
                    self._scores[key] = self.actor.scorer.attribution(kind, tokens[row], start)
                table[row, : rows.lengths[row]] = self._scores[key][len(rows.prompts[row]) :]
        return dataclasses.replace(rows.rollouts, token_scores={kind: table})


def tokens_of(rows: PromptedRollouts) -> list[list[int]]:
    ids = rows.rollouts.token_ids.tolist()
    return [
        [*prompt.tolist(), *own[:length]]
        for prompt, own, length in zip(rows.prompts, ids, rows.lengths, strict=True)
    ]
