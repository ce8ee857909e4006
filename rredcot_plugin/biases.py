"""Options with which the expected policy gradient is not that of the reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rredcot_plugin.values.base import sees_outcome

if TYPE_CHECKING:
    from rredcot_plugin.config import RRedCoTConfig

RETROSPECTIVE = "_retrospective"


def biases_of(config: RRedCoTConfig) -> Iterator[str]:
    """One sentence for each (docs/reference/math.md, "why a boundary must not look ahead")."""
    if config.mode != "segment_gae":
        return
    if config.lam != 1.0 and not config.has_critic:  # GAE with a critic is known for it
        yield f"lam={config.lam:g} uses values in place of what later segments earn: the policy gradient is biased where values are wrong"
    elif config.lam == 1.0 and sees_outcome(config.build_value_estimator()):
        yield (
            f"value_estimator={config.value_estimator} looks at the outcome of the very trace it values, so the policy "
            "gradient is biased with lam=1 too; with support, self_normalized, confidence and monte_carlo it is not"
        )
    if isinstance(config.segmenter, str) and config.segmenter.endswith(RETROSPECTIVE):
        yield (
            f"segmenter={config.segmenter} looks at the finished trace, so the policy gradient is biased: it is for reports; "
            f"train with {config.segmenter.removesuffix(RETROSPECTIVE)} or another one"
        )
    if config.shapers:
        names = ", ".join(entry if isinstance(entry, str) else str(entry["name"]) for entry in config.shapers)
        yield f"shapers={names}: they look at the whole trace, so the policy gradient is biased"
