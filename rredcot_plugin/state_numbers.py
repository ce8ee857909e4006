"""From tokens to states: all that the method reads of the tokens of a trace and their signals once its segments stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rredcot_plugin.baselines.weights import gradient_norm_proxy
from rredcot_plugin.checks import check_shape
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.prefix_numbers import PrefixNumbers, prefix_numbers

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class StateNumbers:
    """Numbers of every state of a batch, a few for each where its tokens are many.

    ``prefixes`` go into the features of calibration, ``gradient_norm_proxy`` weighs segments in baselines. What is None
    is computed from the rollouts where it is asked for.
    """

    prefixes: PrefixNumbers | None = None
    gradient_norm_proxy: Float[Tensor, "B S"] | None = None

    def check(self, segments: Segments) -> None:
        """Raise ``ValueError`` unless the numbers are of these segments' states, as far as shapes tell."""
        shape = tuple(segments.exists.shape)
        if self.prefixes is not None:
            for name, numbers in vars(self.prefixes).items():
                check_shape(f"states.prefixes.{name}", numbers, (*shape, *numbers.shape[2:]))
        if self.gradient_norm_proxy is not None:
            check_shape("states.gradient_norm_proxy", self.gradient_norm_proxy, shape)


def state_numbers(rollouts: Rollouts, segments: Segments) -> StateNumbers:
    """All numbers of every state; no ``gradient_norm_proxy`` without log-probs.

    Those of a row are a function of its own tokens, signals and segments alone, so parts of a batch may be computed
    anywhere and put together.

    Raises:
        ValueError: rollouts without tokens.
    """
    weights = None if rollouts.log_probs is None else gradient_norm_proxy(rollouts, segments)
    return StateNumbers(prefix_numbers(rollouts, segments), weights)
