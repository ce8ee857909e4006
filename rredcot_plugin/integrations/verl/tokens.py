"""Credit as verl wants it back: a number a token, for every row of its batch."""

from __future__ import annotations

import torch

from rredcot_plugin.integrations.verl.sessions import RowRoles
from rredcot_plugin.types import Credit


def fit_width(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Columns cut off or filled up with 0 to the width of ``like``."""
    columns = min(x.shape[1], like.shape[1])
    return torch.nn.functional.pad(x[:, :columns], (0, like.shape[1] - columns))


def rewards_at_ends(credit: Credit) -> torch.Tensor:
    """(B, T): the redistributed reward of each segment on its last token, 0 elsewhere."""
    ids = credit.segments.segment_ids
    (B, T), S = ids.shape, credit.values.shape[1]
    last = torch.full((B, S + 1), -1, dtype=torch.int64)
    owner = torch.where(ids >= 0, ids, S)  # masked tokens are counted in an extra last column
    last.scatter_reduce_(1, owner, torch.arange(T).expand(B, T), reduce="amax")
    ends = torch.where(last[:, :S] >= 0, last[:, :S], T)
    return torch.zeros(B, T + 1).scatter_add_(1, ends, credit.segment_rewards)[:, :T]


def share_with_sessions(own: torch.Tensor, roles: RowRoles, response_mask: torch.Tensor) -> torch.Tensor:
    """Advantages of all rows of the batch from those of the active ones.

    An earlier output of a session gets the advantage of the first unmasked token of its last output everywhere, as
    verl's GRPO hands one number to all of them: 0 where rollout correction has rejected all of that output
    (``response_mask`` is the mask after rejection). Padding gets 0.
    """
    mask = response_mask.to(own.dtype)
    result = torch.zeros_like(mask)
    for row, owner in enumerate(roles.owner):
        if owner < 0:
            continue
        if roles.active[owner] == row:
            result[row] = own[owner] * mask[row]
        else:
            last_output = mask[roles.active[owner]]
            first = int(last_output.argmax())
            result[row] = own[owner, first] * last_output[first] * mask[row]
    return result
