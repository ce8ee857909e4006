"""What users of either trainer are told of their configuration; keys and flags are the trainer's own, given by its module."""

from __future__ import annotations

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.report.findings import FEW_SEGMENTS


def no_siblings(one_rollout: str) -> str:
    """Of a run in which a prompt has one rollout, as ``one_rollout`` sets it."""
    return (
        f"{one_rollout} leaves no siblings to propose answers: only the ground truth is proposed, "
        "and baselines come from the other prompts of the step, so take many (docs/evidence/learning.md)"
    )


def few_segments(settings: RRedCoTConfig, length: int, length_key: str, turns_key: str | None) -> str:
    """That the segmenter cannot find many segments in responses of at most ``length`` tokens; empty if it can.

    ``turns_key`` is what would give a run turns; None where it has them.
    """
    reason = _why_few(settings, length, length_key, turns_key)
    return reason and (
        f"segmenter={settings.segmenter} will give fewer than {FEW_SEGMENTS} segments per trace, {reason}: there is little "
        "to redistribute then; sentence and newline find more"
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
