"""What users of either trainer are told of their configuration; keys and flags are the trainer's own, given by its module."""

from __future__ import annotations

from rredcot_plugin.baselines.least_variance import LeastVarianceBaseline
from rredcot_plugin.baselines.token import TokenBaseline
from rredcot_plugin.baselines.trace import TraceBaseline
from rredcot_plugin.baselines.value import ValueBaseline
from rredcot_plugin.choices import is_grpo
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.report.findings import FEW_SEGMENTS
from rredcot_plugin.values.base import FROM_OTHERS, proposal_limits

SIGNALS = {"uncertainty", "log_probs"}
"""What a segmenter reads of the rollout engine's log-probs."""


def no_siblings(one_rollout: str, settings: RRedCoTConfig) -> str:
    """Of a run in which a prompt has one rollout, as ``one_rollout`` sets it; empty if nothing comes from siblings."""
    missing = [text for text in (_proposed_alone(settings), _measured_alone(settings)) if text]
    return f"{one_rollout} leaves no siblings: {', and '.join(missing)}" if missing else ""


def _proposed_alone(settings: RRedCoTConfig) -> str:
    asked = {} if is_grpo(settings) else proposal_limits(settings.build_value_estimator())
    without = {"group": "nothing is probed", "group_or_ground_truth": "only the ground truth is proposed"}
    return without.get(settings.proposals, "") if set(FROM_OTHERS) & set(asked) else ""


def _measured_alone(settings: RRedCoTConfig) -> str:
    """What the baseline of a group of one is."""
    baseline = settings.build_baseline(log_probs=True)
    if isinstance(baseline, TokenBaseline):
        return "baseline=token is 0: use least_variance or trace"
    if is_grpo(settings):
        return "nothing is subtracted from the reward, as in GRPO"
    if isinstance(baseline, LeastVarianceBaseline | TraceBaseline):
        return "baselines come from the other prompts of the step, so use many prompts (docs/evidence/learning.md)"
    if isinstance(baseline, ValueBaseline) and settings.prior_from_group:
        return "with baseline=value the first segment is measured from 0: trace measures it from other prompts"
    return ""


def loses_credit(loss: str, instead: str) -> str:
    """Of a loss of whole traces, as ``loss`` sets it, with what to use ``instead``."""
    return f"{loss} gives every token of a trace the mean of its advantages, so that credit of segments is lost; use {instead}"


def without_log_probs(settings: RRedCoTConfig, key: str, off: str, on: str) -> str:
    """What is left of the segmenter, whose key is ``key``, where ``off`` keeps the rollout engine from recording log-probs; empty
    if it reads none.

    Raises:
        ValueError: the segmenter cannot do without them; ``on`` records them.
    """
    segmenter = settings.build_segmenter()
    if SIGNALS & set(getattr(segmenter, "needs", ())):
        raise ValueError(
            f"{key}{settings.segmenter} reads log-probs of the rollout engine: set {on}, or use a segmenter that reads texts only"
        )
    if SIGNALS & set(getattr(segmenter, "uses", ())):
        return (
            f"segmenter={settings.segmenter} looks at the log-probs of the sampled tokens, which {off} does not record, so "
            "every keyword counts"
        )
    return ""


def entropies_later(settings: RRedCoTConfig) -> str:
    """That a segmenter's entropies are not known when it cuts; empty if it reads none."""
    segmenter = settings.build_segmenter()
    if "uncertainty" not in {*getattr(segmenter, "needs", ()), *getattr(segmenter, "uses", ())}:
        return ""
    return (
        f"segmenter={settings.segmenter} reads entropies, which are not known before the log-prob pass: the negative "
        "log-prob of the token before stands in"
    )


def few_segments(settings: RRedCoTConfig, length: int, length_key: str, turns_key: str | None) -> str:
    """That the segmenter cannot find many segments in responses of at most ``length`` tokens; empty if it can.

    ``turns_key`` is what would give a run turns; None where it has them.
    """
    reason = _why_few(settings, length, length_key, turns_key)
    return reason and (
        f"segmenter={settings.segmenter} will give fewer than {FEW_SEGMENTS} segments per trace, {reason}, which leaves little "
        "to redistribute; sentence and newline find more"
    )


def _why_few(settings: RRedCoTConfig, length: int, length_key: str, turns_key: str | None) -> str:
    options = settings.segmenter_kwargs
    if settings.segmenter == "none":
        return "one by definition"
    if settings.segmenter == "think_answer":
        return "two as a rule"
    if settings.segmenter == "turn" and turns_key is not None:
        return f"one in a run without {turns_key}"
    if settings.segmenter == "fixed" and length < FEW_SEGMENTS * options.get("tokens", 64):
        return f"since {length_key}{length} holds no more of them"
    limit = options.get("max_segments", FEW_SEGMENTS)
    return f"since segmenter_kwargs.max_segments={limit}" if limit < FEW_SEGMENTS else ""
