"""``process_rewards``: which part of a response earned what, as a reward function says it, put on the tokens of these parts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rredcot_plugin.types import LARGEST_OUTCOME

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
    from rredcot_plugin.text.alignment import TokenBytes

FIELD = "process_rewards"
"""What a reward function calls them in the dictionary that it returns."""

Told = list[tuple[int, float]]
"""(end, reward): what is written up to character ``end`` of the response has earned that."""

FURTHEST = 2**31 - 1


def parse(said: Any) -> tuple[Told, bool]:
    """The pairs of one response, and whether all that was said could be read; what could not be counts for nothing.

    A list of pairs, or the same as JSON: verl's validation takes means over lists, and leaves strings alone.

    >>> parse("[[12, 0.5], [30, 0.25]]")
    ([(12, 0.5), (30, 0.25)], True)
    >>> parse([[12, 0.5], [None, 1.0], [20, float("nan")]])
    ([(12, 0.5)], False)
    """
    if said is None:
        return [], True
    if isinstance(said, str | bytes):
        try:
            said = json.loads(said)
        except (ValueError, RecursionError):
            return [], False
    if not isinstance(said, Iterable) or isinstance(said, str | bytes | dict):
        return [], False
    try:
        pairs = [_pair(entry) for entry in said]
    except TypeError:  # an array of no dimension
        return [], False
    return [pair for pair in pairs if pair is not None], None not in pairs


def _pair(entry: Any) -> tuple[int, float] | None:
    if isinstance(entry, str | bytes):  # two characters unpack as well
        return None
    try:
        end, reward = entry
        end, reward = min(int(end), FURTHEST), float(reward)
    except (TypeError, ValueError, OverflowError):
        return None
    return (end, reward) if end > 0 and abs(reward) <= LARGEST_OUTCOME else None


def moves(rows: PromptedRollouts, table: TokenBytes) -> tuple[Float[Tensor, "B T"] | None, int]:
    """What is to be added to the rewards of these rows, None where nothing was said; and how many of them said what cannot be
    read.

    A reward goes from the last unmasked token of its row to the last one that begins before character ``end``, so that rows
    sum to 0: the score of a response stays what it is. Characters are those of the text that verl's reward managers
    decode, without special tokens; in a session of several outputs, of the last one.
    """
    return moves_to(rows, rows.told, lambda row, ends: _columns(rows, row, ends, table))


def moves_to(
    rows: PromptedRollouts,
    said_of: Sequence[Any] | None,
    columns_of: Callable[[int, Sequence[int]], Int[Tensor, " n"]],
) -> tuple[Float[Tensor, "B T"] | None, int]:
    """The same with ``columns_of`` a row and ends, what was said of each row being ``said_of``."""
    if said_of is None:
        return None, 0
    parsed = [parse(said) for said in said_of]
    unread = sum(not readable for _, readable in parsed)
    mask = rows.rollouts.response_mask
    added = torch.zeros(mask.shape)
    for row, (told, _) in enumerate(parsed):
        if not told:
            continue
        columns = columns_of(row, [end for end, _ in told])
        if not len(columns):
            continue
        paid = torch.tensor([reward for _, reward in told], dtype=torch.float64)
        own = torch.zeros(mask.shape[1], dtype=torch.float64).index_add_(0, columns, paid)
        own[mask[row].nonzero()[-1]] -= paid.sum()
        added[row] = own.float()
    beyond = ~torch.isfinite(added).all(dim=1)  # sums may be what their parts are not
    added[beyond] = 0.0
    return (added if bool(added.any()) else None), unread + int(beyond.sum())


def _columns(rows: PromptedRollouts, row: int, ends: Sequence[int], table: TokenBytes) -> Int[Tensor, " n"]:
    """Where the tokens stand that wrote up to these characters; none where the model has written nothing."""
    output = rows.outputs_of(row)[-1]
    within = slice(output.start, output.start + output.length)
    written = rows.rollouts.response_mask[row, within].cpu().nonzero().flatten()
    if not len(written):
        return torch.zeros(0, dtype=torch.int64)
    starts = table.shown_starts(rows.token_ids[row, within].cpu().numpy())
    places = np.searchsorted(starts[written.numpy()], np.array(ends), side="left") - 1
    return output.start + written[places.clip(min=0)]


def moved(rows: PromptedRollouts, added: Float[Tensor, "B T"] | None) -> PromptedRollouts:
    """The rows with what ``moves`` found."""
    if added is None:
        return rows
    return dataclasses.replace(
        rows, rollouts=dataclasses.replace(rows.rollouts, rewards=rows.rollouts.rewards + added)
    )


def placed(rows: PromptedRollouts, table: TokenBytes) -> tuple[PromptedRollouts, Float[Tensor, "B T"] | None, int]:
    """The rows with every reward where it was earned, and what ``moves`` found."""
    added, unread = moves(rows, table)
    return moved(rows, added), added, unread
