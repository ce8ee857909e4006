"""Options with which the expected policy gradient is not that of the reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rredcot_plugin.values.base import sees_outcome

if TYPE_CHECKING:
    from rredcot_plugin.config import RRedCoTConfig

RETROSPECTIVE = "_retrospective"
BELOW_ONE = {"lam_coarse": "segments within it", "lam_turn_rewards": "later turns"}
"""Options that are λ of something: what their values stand in for."""


def biases_of(config: RRedCoTConfig) -> Iterator[str]:
    """One sentence for each (docs/reference/math.md, "why a boundary must not look ahead")."""
    if config.mode != "segment_gae":
        return
    if config.lam != 1.0 and not config.has_critic:  # GAE with a critic is known for it
        yield f"lam={config.lam:g} uses values in place of what later segments earn: the policy gradient is biased where values are wrong"
    for key, what in BELOW_ONE.items():
        if (value := getattr(config, key)) not in (None, 1.0):
            yield f"{key}={value:g} uses values in place of what {what} earn: the policy gradient is biased where values are wrong"
    if config.lam == 1.0 and sees_outcome(config.build_value_estimator()):
        yield (
            f"value_estimator={config.value_estimator} looks at the outcome of the very trace it values, so the policy "
            "gradient is biased with lam=1 too; with support, self_normalized, confidence and monte_carlo it is not"
        )
    if config.credit_weight:
        yield (
            f"credit_weight={config.credit_weight} subtracts the luck of later segments: the policy gradient is biased where values "
            "are wrong"
        )
    if config.calibrate_window == 0 and config.segmenter != "none":
        yield (
            "calibrate_window=0 keeps no past step, so that the range of values is that of the batch: the policy gradient is biased "
            "where a trace alone has the lowest or the highest reward"
        )
    if not config.leave_one_out and config.segmenter != "none":
        yield "leave_one_out=False lets the outcome of a trace into its own values: the policy gradient is biased"
    if config.match_grpo:
        yield "match_grpo=True shifts each trace by what its own segments earned: the policy gradient is biased"
    if getattr(config.build_segmenter(), "retrospective", False):
        name = str(config.segmenter)
        instead = (
            f"{name.removesuffix(RETROSPECTIVE)} or another one" if name.endswith(RETROSPECTIVE) else "another one"
        )
        yield (
            f"segmenter={name} looks at the finished trace, so the policy gradient is biased: it is for reports; train with "
            f"{instead}"
        )
    if config.shapers:
        names = ", ".join(entry if isinstance(entry, str) else str(entry["name"]) for entry in config.shapers)
        yield f"shapers={names}: they look at the whole trace, so the policy gradient is biased"
