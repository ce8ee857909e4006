"""Credit as verl wants it back: a number a token, for every row of its batch."""

from __future__ import annotations

import torch

from rredcot_plugin.integrations.verl.session_plane import SessionLayout
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


def onto_rows(
    own: torch.Tensor,
    roles: RowRoles,
    layout: SessionLayout,
    response_mask: torch.Tensor,
    lost: torch.Tensor | None = None,
) -> torch.Tensor:
    """Advantages or returns of all rows of the batch from those of its sessions, (sessions, columns): every output has those
    of its own tokens.

    ``response_mask`` is the mask after rollout correction, and what that has rejected gets 0. So does all of a session whose
    last output has no token left, rejected or aborted, as in verl's GRPO (``has_lost_end``), unless there is ``lost``, of the
    shape of ``own``: a critic that learns returns has to be told its own values there, not 0. Padding gets 0.
    """
    mask = response_mask.to(own.dtype)
    result = torch.zeros_like(mask)
    rows = layout.split(own, mask.shape[1])
    instead = torch.zeros_like(rows) if lost is None else layout.split(lost.to(rows.dtype), mask.shape[1])
    left = ~has_lost_end(roles, response_mask)
    kept = torch.repeat_interleave(left, torch.tensor(list(map(len, roles.sessions)), dtype=torch.int64))
    result[roles.active] = torch.where(kept[:, None], rows, instead) * mask[roles.active]
    return result


def has_lost_end(roles: RowRoles, response_mask: torch.Tensor) -> torch.Tensor:
    """(sessions,): whether the last output of a session has no unmasked token."""
    last = torch.tensor([own[-1] for own in roles.sessions], dtype=torch.int64)
    return ~response_mask[last].bool().any(dim=1)
