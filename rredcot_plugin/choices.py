"""What is chosen automatically, each with its reason: the code that decides says why.

``rredcot explain`` prints these reasons, so they cannot differ from what a run does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rredcot_plugin.allowed import NAMED, Choice
from rredcot_plugin.baselines.base import is_per_token
from rredcot_plugin.segmenters.none import NoSegmenter
from rredcot_plugin.text.encoding import choose_bridge, choose_terminator
from rredcot_plugin.values.base import calibrates, proposal_limits
from rredcot_plugin.values.window import LEAST_ROLLOUTS, LEAST_STEPS

if TYPE_CHECKING:
    from rredcot_plugin.config import RRedCoTConfig
    from rredcot_plugin.types import Segments

AUTO_TOKENS = 1 << 20
"""Response tokens of a step up to which ``credit_workers: auto`` stays in the driver: about one second of work."""

MOST_WORKERS = 32
"""Of ``credit_workers: auto``."""


def choose_baseline(config: RRedCoTConfig, *, log_probs: bool) -> Choice:
    """The baseline that ``auto`` stands for; ``log_probs``: whether the rollouts carry them.

    ``auto`` takes ``least_variance`` where that is measured to help and cannot harm: λ = 1, where Â is the return and any
    baseline of the prefix leaves its expectation alone, with a calibrated estimator (docs/evidence/gradient.md).
    """
    if config.baseline != "auto":
        return Choice(config.baseline, NAMED)
    missing = [
        name
        for name, holds in (
            ("mode=segment_gae", config.mode == "segment_gae"),
            ("lam=1", config.lam == 1.0),
            ("lam_coarse=1 or null", config.lam_coarse in (None, 1.0)),
            ("calibrate=outcome or trees", config.calibrate in ("outcome", "trees")),
            ("a value estimator that calibrate applies to", calibrates(config.build_value_estimator())),
            ("leave_one_out=true", config.leave_one_out),
            ("match_grpo=false", not config.match_grpo),
            ("log-probs in the rollouts", log_probs),
        )
        if not holds
    ]
    if missing:
        return Choice("value", f"auto uses least_variance only with {', '.join(missing)}")
    return Choice(
        "least_variance",
        "with lam=1 and calibrated values, no baseline of the prefix changes the expected gradient, and this one leaves "
        "it the least variance",
    )


def choose_scale(config: RRedCoTConfig, *, by_std: bool = True) -> Choice:
    """What advantages are divided by; ``by_std``: verl's ``algorithm.norm_adv_by_std_in_grpo``."""
    if config.scale is not None:
        return Choice(config.scale, NAMED)
    truth = "true" if by_std else "false"
    return Choice(
        "group_std" if by_std else "none", f"follows algorithm.norm_adv_by_std_in_grpo, which is {truth}"
    )


def choose_backend(wanted: str, why_not_in_pass: str | None = None) -> Choice:
    """Where probes run, ``probe_backend`` being ``wanted``; ``why_not_in_pass``: what keeps them out of the host's log-prob pass, None for nothing."""
    if wanted == "batched":
        return Choice(wanted, NAMED)
    if why_not_in_pass is not None:
        return Choice("batched", f"the log-prob pass is out of reach because of {why_not_in_pass}")
    if wanted != "auto":
        return Choice(wanted, NAMED)
    reason = (
        "the engine can run probes in its log-prob pass; batched takes over if the model turns out not to allow it"
    )
    return Choice("cached", reason)


def choose_window(config: RRedCoTConfig) -> Choice:
    """Past steps that the fit sees; None for as many as ``OutcomeCalibrator`` takes by itself."""
    if config.calibrate_window != "auto":
        return Choice(int(config.calibrate_window), NAMED)
    reason = (
        f"{LEAST_STEPS} past steps, or as many as hold {LEAST_ROLLOUTS} rollouts together: smaller fits are rough and "
        "slow down learning"
    )
    return Choice(None, reason)


def choose_workers(config: RRedCoTConfig, tokens: int, cores: int) -> Choice:
    """Processes that work on a step with this many response ``tokens``, 1 for the driver alone; ``cores`` of its node."""
    if config.credit_workers != "auto":
        return Choice(max(1, int(config.credit_workers)), NAMED)
    if tokens <= AUTO_TOKENS:
        return Choice(1, f"up to {AUTO_TOKENS:,} response tokens in a step, the driver alone is fast enough")
    reason = f"a step of more than {AUTO_TOKENS:,} response tokens is shared by half the cores of the driver's node ({cores} here), {MOST_WORKERS} at most"
    return Choice(min(MOST_WORKERS, cores // 2), reason)


def choose_credit_weight(config: RRedCoTConfig) -> Choice:
    """Weight of the luck of later segments; None for what each step's past steps advise (`values.luck`)."""
    if config.credit_weight != "auto":
        return Choice(config.credit_weight, NAMED)
    return Choice(
        None, "each step uses the weight with the least squared error over its past steps, 0 in the first two"
    )


def is_grpo(config: RRedCoTConfig) -> bool:
    """Whether ``segmenter: none`` makes the run verl's own GRPO: its mean, the own outcome included, is the baseline."""
    return isinstance(config.build_segmenter(), NoSegmenter) and not config.has_critic


def has_groups_mean(config: RRedCoTConfig, segments: Segments) -> bool:
    """Whether the values of a step are GRPO's mean, the own outcome included, as with ``segmenter: none``.

    That a batch happens to have one segment per trace is not a reason for it: whether a trace is cut depends on the trace,
    and so would its baseline.
    """
    return segments.max_segments == 1 and is_grpo(config)


def measures_from_groups_mean(config: RRedCoTConfig, baseline: Any) -> bool:
    """Whether the mean reward of the group takes the place of ``baseline``: in GRPO, unless that is one per token."""
    return is_grpo(config) and not is_per_token(baseline)


def automatic(
    config: RRedCoTConfig,
    *,
    log_probs: bool = True,
    by_std: bool = True,
    why_not_in_pass: str | None = None,
    tokens: int = 0,
    cores: int = 1,
) -> dict[str, Choice]:
    """Key -> what it stands for, for every key whose value leaves something to be chosen; arguments as above.

    Where nothing is probed or fitted, the keys about that say so.
    """
    found = {
        "baseline": _choose_measured_from(config, log_probs=log_probs),
        "scale": choose_scale(config, by_std=by_std),
        "probe_backend": choose_backend(config.probe_backend, why_not_in_pass),
        "calibrate_window": choose_window(config),
        "credit_weight": choose_credit_weight(config),
        "credit_workers": choose_workers(config, tokens, cores),
        "bridge": choose_bridge(config.bridge),
        "terminator": choose_terminator(config.terminator),
    }
    if is_grpo(config) or not proposal_limits(config.build_value_estimator()):
        found |= dict.fromkeys(
            ("probe_backend", "bridge", "terminator"), Choice(None, "not used: nothing is probed")
        )
    if found["baseline"].value != "least_variance":  # which has a fit of its own
        if config.calibrate == "none":
            found["calibrate_window"] = Choice(None, "not used: nothing is fitted")
        elif not calibrates(config.build_value_estimator()):
            found["calibrate_window"] = Choice(None, "not used: nothing is calibrated")
    return {key: choice for key, choice in found.items() if choice.reason != NAMED}


def _choose_measured_from(config: RRedCoTConfig, *, log_probs: bool) -> Choice:
    """The baseline of a whole run: that of GRPO where the run is GRPO, whatever is named, unless it is one per token."""
    if measures_from_groups_mean(config, config.build_baseline(log_probs=log_probs)):
        return Choice(
            "value", "segmenter=none is verl's own GRPO, which measures from the mean reward of the group"
        )
    return choose_baseline(config, log_probs=log_probs)
