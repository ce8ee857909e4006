"""``reward_model``: the score head of a reward model, read at the boundaries (RED). No retraining, no probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rredcot_plugin.registry import check_count, register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed, scores_at_states

DTYPES = ("float32", "bfloat16", "float16")


@register_value_estimator("reward_model")
@dataclass(frozen=True)
class RewardModelEstimator:
    """The reward model's own score of the prefix (RED).

    V̂_i = R_φ(x, y_<t), t the first token of segment i. Read from ``token_scores["reward_model"]``. Differences of
    successive prefixes are RED's token rewards (arXiv 2411.08302): with ``segmenter: fixed``, ``tokens: 1`` and λ = 0
    the advantage of token t is R_φ(x, y_≤t) − R_φ(x, y_<t). The last difference is R − V̂_last, so the rewards of a
    trace still sum to its outcome R, whatever R is; where R is the reward model's own score of the whole response,
    the last difference is RED's as well. Values are in the units of that score and not calibrated: R should be in the
    same units.
    A state whose score is not finite has that of the state before it. Where there are no scores, every row is unknown.

    Args:
        path: directory of the reward model, a decoder with one score
            (``AutoModelForSequenceClassification``, ``num_labels=1``) and the tokens of the actor. verl needs
            it; elsewhere the scores are given and it is not read.
        dtype: ``float32``, ``bfloat16`` or ``float16`` of its weights and layers; None: float32 on the CPU,
            else bfloat16. The score head itself is always read in float32.
        max_tokens_per_gpu: tokens of one forward pass of a worker; None follows
            ``actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu``. The longest trace always fits.
        trust_remote_code: allow the checkpoint's own Python code.

    Raises:
        ValueError: an option that is not allowed.
    """

    path: str | None = None
    dtype: str | None = None
    max_tokens_per_gpu: int | None = None
    trust_remote_code: bool = False

    proposes: ClassVar[str] = NO_PROBES
    reads: ClassVar[tuple[str, ...]] = ("reward_model",)
    calibrates: ClassVar[bool] = False
    max_proposals: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.path is not None and (not isinstance(self.path, str) or not self.path):
            raise ValueError(f"path={self.path!r}: expected the directory of a reward model")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.max_tokens_per_gpu is not None:
            check_count("max_tokens_per_gpu", self.max_tokens_per_gpu)
        if not isinstance(self.trust_remote_code, bool):
            raise ValueError(f"trust_remote_code={self.trust_remote_code!r}: expected true or false")

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        return scores_at_states("reward_model", rollouts, segments)
