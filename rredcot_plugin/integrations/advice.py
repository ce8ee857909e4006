"""What users of either trainer are told of their configuration; keys and flags are the trainer's own, given by its module."""

from __future__ import annotations

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.report.findings import FEW_SEGMENTS

SIGNALS = {"uncertainty", "log_probs"}
"""What a segmenter reads of the rollout engine's log-probs."""


def no_siblings(one_rollout: str) -> str:
    """Of a run in which a prompt has one rollout, as ``one_rollout`` sets it."""
    return (
        f"{one_rollout} leaves no siblings to propose answers: only the ground truth is proposed, "
        "and baselines come from the other prompts of the step, so use many prompts (docs/evidence/learning.md)"
    )


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
