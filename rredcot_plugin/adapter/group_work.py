"""The work of a step that looks at one group at a time, on parts of the batch, so that processes can share it.

What needs the whole batch passes between: outcomes and how the responses answer (``BatchSummary``), and the lowest
outcome. The parts of a batch then give what the whole gives, to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rredcot_plugin.adapter.merging import merge_numbers, merge_plans, merge_summaries
from rredcot_plugin.adapter.output_cuts import build_levels
from rredcot_plugin.adapter.probe_plan import ProbePlan, place_probes, redistributed
from rredcot_plugin.adapter.process_rewards import placed
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import BatchSummary, Index
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.state_numbers import StateNumbers, state_numbers
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import AnswerStyle, ProbeEncoder
from rredcot_plugin.types import Segments, check_partition
from rredcot_plugin.values.proposals import floor_of

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Ask = Callable[[str, Sequence[tuple[Any, ...]]], list[Any]]
"""Name of a method of ``GroupWork``, and its arguments for every part -> its result of every part."""


class Part(Protocol):
    """Rows of a batch, or what leads to them."""

    def take(self, index: Index) -> Any: ...


class GroupWork:
    """Whole groups of a batch, from their tokens to the numbers of their states. Keeps them between its calls, which
    come in the order ``read``, ``plan``, ``update_signals`` and ``state_numbers``."""

    def __init__(self, config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder) -> None:
        self.config, self.table, self.encoder = config, table, encoder
        self.rows: PromptedRollouts | None = None
        """The groups, with their texts."""
        self._segments: Segments | None = None
        self._watch = LookaheadWatch(config.build_segmenter())

    def read(self, rows: PromptedRollouts, index: Index | None = None) -> BatchSummary:
        """Segments and the summary of these rows; an error names rows by ``index``, their numbers in the batch."""
        rows, added, unread = placed(rows, self.table)
        self.rows = rows = rows.read(self.table)
        levels = build_levels(rows, self.config)
        self._segments = levels[-1]
        check_partition(self._segments, rows.rollouts.response_mask, index)
        outcomes = redistributed(rows.rollouts, self.config)
        style = AnswerStyle.of(rows.rollouts.texts or [], rows.prompt_tails)
        return BatchSummary(levels, style, outcomes, rows.tokens, self._watch(rows.rollouts), added, unread)

    def plan(self, seen: Mapping[str, Any], floor: Float[Tensor, " B"]) -> ProbePlan:
        """The probes, by an encoder that has ``seen`` the same in all parts (``ProbeEncoder.state_dict``), steps that a part
        had nothing of included; and each row's ``floor`` (``build_proposals``)."""
        assert self.rows is not None and self._segments is not None
        self.encoder.load_state_dict(seen)
        return place_probes(self.rows, self._segments, self.config, self.encoder, floor)

    def update_signals(
        self,
        log_probs: Float[Tensor, "B T"] | None,
        entropies: Float[Tensor, "B T"] | None,
        sum_pi_squared: Float[Tensor, "B T"] | None = None,
    ) -> None:
        """Take the actor's signals for those of the rollout engine."""
        assert self.rows is not None
        rollouts = dataclasses.replace(
            self.rows.rollouts, log_probs=log_probs, entropies=entropies, sum_pi_squared=sum_pi_squared
        )
        self.rows = dataclasses.replace(self.rows, rollouts=rollouts)

    def state_numbers(self) -> StateNumbers:
        """The numbers of every state, with the signals at hand."""
        assert self.rows is not None and self._segments is not None
        return state_numbers(self.rows.rollouts, self._segments)


def split_groups(group_ids: Sequence[Hashable], sizes: Sequence[int], parts: int) -> list[Index]:
    """Rows in at most ``parts`` parts of about the same size, whole groups each: the largest group goes to the least
    part.

    >>> split_groups(["a", "b", "a", "c"], [5, 4, 5, 3], 2)
    [[0, 2], [1, 3]]
    """
    groups: dict[Hashable, list[int]] = {}
    for row, group in enumerate(group_ids):
        groups.setdefault(group, []).append(row)
    found: list[list[int]] = [[] for _ in range(min(parts, len(groups)))]
    filled = [0] * len(found)
    for members in sorted(groups.values(), key=lambda rows: -sum(sizes[row] for row in rows)):
        least = filled.index(min(filled))
        found[least] += members
        filled[least] += sum(sizes[row] for row in members)
    return [sorted(rows) for rows in found]


def plan_in_parts(
    whole: Part,
    indices: Sequence[Index],
    ask: Ask,
    follow: Callable[[AnswerStyle], Mapping[str, Any]],
    lowest: float | None = None,
) -> tuple[BatchSummary, ProbePlan]:
    """The summary of the batch, and its probes; ``follow`` gives what an encoder has seen that follows the batch's style,
    ``lowest`` as in ``plan_probes``."""
    summary = merge_summaries(ask("read", [(whole.take(index), index) for index in indices]), indices)
    floor = floor_of(summary.outcomes, lowest)
    seen = follow(summary.style)
    plans = ask("plan", [(seen, floor[index]) for index in indices])
    return summary, merge_plans(plans, indices, summary.levels[-1])


def numbers_in_parts(indices: Sequence[Index], ask: Ask) -> StateNumbers:
    """``state_numbers`` of the batch that was planned last."""
    return merge_numbers(ask("state_numbers", [()] * len(indices)), indices)
