"""Attention of probe tokens: each sees its row's trunk up to its limit, and its own probe so far.

Probes are sorted by limit and asked in groups; a group reads trunk keys only up to its largest limit (and, in
sliding-window layers, from its smallest position minus the window). On a CPU small groups halve the work against
one call over the whole trunk; a GPU needs large ones to be busy. The masks of all groups, probe tokens x trunk in
total, are made in the first layer and kept for the others: with `max_segments` fixed, memory stays linear in the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rredcot_plugin.probes.kernels import AttentionOptions, additive_mask, masked_attention
from rredcot_plugin.probes.layout import ProbeLayout
from rredcot_plugin.probes.transfer import send

GROUP_SIZE = {"cpu": 96}
"""Queries a group, by type of device: on CPU 48 to 128 are equally fast within 10%, 12 and 256 up to 40% slower."""
OTHER_GROUP_SIZE = 1024
"""On other devices: 64 probes of 16 tokens after 16,384 cost an H100 1.19 times the plain pass of a 4B model, in groups of
96 1.47 times (benchmarks/results/gpu_groups.json)."""


@dataclass(frozen=True)
class ProbeGroup:
    """Fed tokens [start, stop) of one row; they read trunk [:trunk_stop] and fed tokens [key_start, stop)."""

    row: int
    start: int
    stop: int
    key_start: int
    trunk_stop: int
    least_position: int


@dataclass(frozen=True)
class ForkPlan:
    """A layout made ready for attention, once for all layers; the tensors are (P,), one number a token."""

    groups: tuple[ProbeGroup, ...]
    limit: Tensor
    probe: Tensor
    position: Tensor
    masks: dict[tuple[ProbeGroup, int | None], Tensor] = field(default_factory=dict)
    """Additive masks by group and window, filled by the first layer that needs one."""


def plan_fork(layout: ProbeLayout, device: torch.device, group_size: int | None = None) -> ForkPlan:
    """Cut a layout (on CPU) into groups of at most `group_size` tokens of one row; None: what suits the device."""
    group_size = group_size or GROUP_SIZE.get(device.type, OTHER_GROUP_SIZE)
    probe = layout.probe_index()
    limit = layout.limit[probe]
    first_token = (layout.length.cumsum(0) - layout.length)[probe].tolist()
    token_row, limits, positions = layout.row[probe].tolist(), limit.tolist(), layout.position_ids.tolist()
    groups = []
    start = 0
    while start < len(token_row):
        stop = start + 1
        while stop < len(token_row) and stop - start < group_size and token_row[stop] == token_row[start]:
            stop += 1
        groups.append(
            ProbeGroup(
                row=token_row[start],
                start=start,
                stop=stop,
                key_start=first_token[start],
                trunk_stop=limits[stop - 1],
                least_position=min(positions[start:stop]),
            )
        )
        start = stop
    return ForkPlan(tuple(groups), send(limit, device), send(probe, device), send(layout.position_ids, device))


def fork_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    trunk_kv: Sequence[tuple[Tensor, Tensor]],
    plan: ForkPlan,
    options: AttentionOptions,
) -> Tensor:
    """Attention output (1, H, P, D_v) of the fed probe tokens.

    query (1, H, P, D); key, value (1, H_kv, P, D): of the probe tokens; `trunk_kv`: per row (key, value) of
    its trunk, (1, H_kv, T_row, D), index = position id.
    """
    shared_heads = query.shape[1] // key.shape[1]
    out = value.new_empty((1, query.shape[1], query.shape[2], value.shape[-1]))
    for group in plan.groups:
        trunk_key, trunk_value = trunk_kv[group.row]
        trunk_start = 0
        if options.window is not None:
            # the late tokens of a long probe may see no trunk at all: never past trunk_stop
            trunk_start = min(max(0, group.least_position - options.window + 1), group.trunk_stop)
        trunk, own = slice(trunk_start, group.trunk_stop), slice(group.key_start, group.stop)
        out[:, :, group.start : group.stop] = masked_attention(
            query[:, :, group.start : group.stop],
            torch.cat([trunk_key[:, :, trunk], key[:, :, own]], dim=2),
            torch.cat([trunk_value[:, :, trunk], value[:, :, own]], dim=2),
            _kept_mask(group, plan, trunk_start, options.window, shared_heads, query.dtype),
            options,
        )
    return out


def _kept_mask(
    group: ProbeGroup, plan: ForkPlan, trunk_start: int, window: int | None, shared_heads: int, dtype: torch.dtype
) -> Tensor:
    if (group, window) not in plan.masks:
        visible = _group_mask(group, plan, trunk_start, window)
        plan.masks[group, window] = additive_mask(visible, shared_heads, dtype)
    return plan.masks[group, window]


def _group_mask(group: ProbeGroup, plan: ForkPlan, trunk_start: int, window: int | None) -> Tensor:
    """(queries, trunk keys + own keys) bool, True where visible; every query sees at least itself."""
    asking, own = slice(group.start, group.stop), slice(group.key_start, group.stop)
    device = plan.limit.device
    trunk_position = torch.arange(trunk_start, group.trunk_stop, device=device)
    sees_trunk = trunk_position < plan.limit[asking, None]
    own_index = torch.arange(group.key_start, group.stop, device=device)
    not_later = own_index <= own_index[group.start - group.key_start :, None]
    sees_own = (plan.probe[asking, None] == plan.probe[own]) & not_later
    mask = torch.cat([sees_trunk, sees_own], dim=1)
    if window is not None:
        key_position = torch.cat([trunk_position, plan.position[own]])
        mask &= plan.position[asking, None] - key_position < window
    return mask
