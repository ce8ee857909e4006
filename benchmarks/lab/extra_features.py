"""Features that calibration could have besides its own: causal, and of other rollouts only."""

from __future__ import annotations

from collections import defaultdict

import torch

from lab.estimators import Workbench, config_of
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.features import exclusive_sum

EXTRA: dict[str, list[str]] = {
    "unclipped probe": ["log_value"],
    "probe's past": ["logit_max", "logit_change"],
    "answer mass": ["log_mass", "logit_share"],
    "excess surprise": ["excess_sum", "excess_max", "last_excess_max"],
    "siblings' lines": ["line_shared_good", "line_shared_bad", "prefix_mean", "prefix_count"],
    "products": ["logit_x_position", "others_x_position", "logit_x_log_prob_min", "others_x_log_prob_min"],
}
"""Group -> columns."""


def extra_features(bench: Workbench, index: int, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All columns of ``EXTRA`` for a batch, (B, S) each, given the columns that calibration has."""
    rollouts, segments = bench.batches[index].rows.rollouts, bench.segments[index]
    return {
        **_probe_columns(bench, index, own["logit_value"]),
        **_surprise_columns(rollouts, segments),
        **_sibling_columns(rollouts, segments),
        "logit_x_position": own["logit_value"] * own["log_segments"],
        "others_x_position": own["logit_others_mean"] * own["log_segments"],
        "logit_x_log_prob_min": own["logit_value"] * own["log_prob_min"],
        "others_x_log_prob_min": own["logit_others_mean"] * own["log_prob_min"],
    }


def _probe_columns(bench: Workbench, index: int, logit: torch.Tensor) -> dict[str, torch.Tensor]:
    """The value's log without the floor of 1e-4, its past, and how much of all answers' mass is rewarded."""
    nothing = torch.zeros(logit.shape)
    log_value, mass, share = nothing - 20, nothing - 20, nothing
    probed = bench.probed(index, config_of("support")).get("group")
    if probed is not None:
        weight = torch.where(probed.valid, probed.utility, 0.0)[:, None, :].clamp(min=0)
        log_value = torch.logsumexp(probed.log_pi + weight.log(), dim=2).clamp(min=-20)
    everyone = bench.probed(index, config_of("self_normalized")).get("group_all")
    if everyone is not None:
        log_pi = torch.where(everyone.valid[:, None, :], everyone.log_pi, -torch.inf)
        mass = torch.logsumexp(log_pi, dim=2).clamp(min=-20)
        good = log_pi + torch.where(everyone.valid, everyone.utility, 0.0)[:, None, :].clamp(min=0).log()
        share = (torch.logsumexp(good, dim=2) - mass).clamp(-9, 0).exp().clamp(1e-4, 1 - 1e-4).logit()
    first = logit[:, 1:2] if logit.shape[1] > 1 else logit
    behind = torch.cat([first, logit[:, 1:]], dim=1)  # the prompt's state is not probed
    change = torch.diff(behind, dim=1, prepend=behind[:, :1])
    past = behind.cummax(dim=1).values
    return {
        "log_value": log_value,
        "logit_max": past,
        "logit_change": change,
        "log_mass": mass,
        "logit_share": share,
    }


def _surprise_columns(rollouts: Rollouts, segments: Segments) -> dict[str, torch.Tensor]:
    """−log-prob beyond the entropy of its place: a slip where the model was sure, not a free choice."""
    assert rollouts.log_probs is not None and rollouts.entropies is not None
    excess = torch.where(rollouts.response_mask, (-rollouts.log_probs - rollouts.entropies).clamp(min=0), 0.0)
    before = segments.starts
    running = torch.nn.functional.pad(excess.cummax(dim=1).values, (1, 0)).gather(1, before)
    last = torch.zeros(segments.exists.shape)
    for k in range(1, last.shape[1]):
        last[:, k] = torch.where(segments.segment_ids == k - 1, excess, 0.0).amax(dim=1)
    return {"excess_sum": exclusive_sum(excess, before), "excess_max": running, "last_excess_max": last}


def _sibling_columns(rollouts: Rollouts, segments: Segments) -> dict[str, torch.Tensor]:
    """What became of the other rollouts of the prompt that wrote the same line, or the same prefix.

    ``line_shared_good``/``bad``: log(1 + rewarded/unrewarded siblings with the segment's text anywhere);
    ``prefix_mean``: their mean reward for the same prefix, smoothed by one pseudo-sibling with the group's mean.
    """
    pieces = segment_texts(rollouts, segments)
    outcomes, groups = rollouts.outcomes.tolist(), defaultdict(list)
    for row, group in enumerate(rollouts.group_ids):
        groups[group].append(row)
    names = EXTRA["siblings' lines"]
    found = {name: torch.zeros(segments.exists.shape) for name in names}
    for members in groups.values():
        for row in members:
            others = [other for other in members if other != row]
            prior = sum(outcomes[other] for other in others) / max(1, len(others))
            for k in range(len(pieces[row])):
                line, prefix = pieces[row][k - 1] if k else "", pieces[row][:k]
                same = [outcomes[other] for other in others if line in pieces[other]] if k else []
                path = [outcomes[other] for other in others if pieces[other][:k] == prefix]
                numbers = (sum(same), len(same) - sum(same), (sum(path) + prior) / (len(path) + 1), len(path))
                for name, number in zip(names, numbers, strict=True):
                    found[name][row, k] = number if name == "prefix_mean" else torch.log1p(torch.tensor(number))
    return found


def segment_texts(rollouts: Rollouts, segments: Segments) -> list[list[str]]:
    """The text of every segment of every row; special tokens count as text."""
    assert rollouts.texts is not None and rollouts.token_offsets is not None
    texts = []
    for row, count in enumerate(segments.num_segments.tolist()):
        spans, starts = rollouts.token_offsets[row], segments.starts[row].tolist()
        cuts = [int(spans[start][0]) for start in starts[:count]]
        texts.append([rollouts.texts[row][a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)])
    return texts
