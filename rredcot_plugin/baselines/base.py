"""What a baseline gets and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from rredcot_plugin.baselines.weights import gradient_norm_proxy
from rredcot_plugin.checks import check_names
from rredcot_plugin.groups import Outcomes
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.fit import StepFit

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """What is known of a batch when its baselines are asked for.

    ``values`` is V̂ of the state before each segment, 0 in the padding. ``fit`` regresses outcomes on what is known of
    a state, on other groups and past steps. ``gradient_norm_proxy`` is that of every segment where it was given; the
    rollouts then need no log-probs. ``paid`` is what rewards on the way add to the return of each state and ``expected``
    what is expected of that anyway, which is added to every baseline; 0 where there are none. Penalties count among them for a
    baseline per segment at λ = 1, and ``outcomes`` are of the score then.
    """

    rollouts: Rollouts
    segments: Segments
    outcomes: Outcomes
    values: Float[Tensor, "B S"]
    fit: StepFit
    gradient_norm_proxy: Float[Tensor, "B S"] | None = None
    paid: Float[Tensor, "B S"] | None = None
    expected: Float[Tensor, "B S"] | None = None

    def state_weight(self) -> Float[Tensor, "B S"]:
        """``gradient_norm_proxy`` of every segment: as given, or from the log-probs.

        Raises:
            ValueError: neither was given.
        """
        given = self.gradient_norm_proxy
        return gradient_norm_proxy(self.rollouts, self.segments) if given is None else given


class Baseline(Protocol):
    """b, what the advantage of a segment or token is measured from: Â + V̂ − b, which is the return minus b at λ = 1.

    Returns (B, S), a number per segment; or (B, T), a number per token, where the class attribute ``per_token`` is
    true. What it returns in the padding or on masked tokens is ignored. The gradient stays exact (λ = 1,
    ``scale: none``) if b is a function of the tokens before the segment (or token) and of *other* rollouts.

    Optional class attributes:

    ``per_token`` (default false): see above.
    ``needs`` (default none): fields of ``Rollouts`` that it reads besides the tokens' mask and rewards, such as
    ``("log_probs", "sum_pi_squared")``; in verl the driver then reads them, and ``sum_pi_squared`` is computed.
    """

    def __call__(self, evidence: Evidence) -> Float[Tensor, "B S"] | Float[Tensor, "B T"]: ...


def is_per_token(baseline: Any) -> bool:
    """Whether a baseline returns a number per token."""
    return bool(getattr(baseline, "per_token", False))


def needs_of(baseline: Any) -> tuple[str, ...]:
    """The fields of ``Rollouts`` that a baseline reads.

    Raises:
        ValueError: a text in place of a tuple, or a name that is not a field.
    """
    return check_names(baseline, "needs", [field.name for field in fields(Rollouts)])
