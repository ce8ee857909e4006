"""Every option of the method with its default, what is allowed and what it does, in one sentence or two.

``RRedCoTConfig`` (config.py) adds the checks that concern several options at once, and builds from them. The
configuration reference (docs/reference/configuration.md), ``conf/rredcot/default.yaml`` and ``rredcot explain`` all
print these sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rredcot_plugin.allowed import (
    Allowed,
    AutomaticText,
    Count,
    CountOrZero,
    Flag,
    Folder,
    Free,
    Named,
    Number,
    OneOf,
)

PROPOSALS = ("group", "ground_truth", "group_or_ground_truth", "reference")
CALIBRATIONS = ("none", "group_shift", "outcome", "trees")
PROBE_BACKENDS = ("auto", "cached", "packed", "batched")
MODES = ("segment_gae", "weighted")
TURN_REWARDS = ("keep", "redistribute")
SCALES = ("group_std", "none", "batch_std", "whiten")

MAPPING = Free("mapping")

V1_ONLY = ("credit_workers", "credit_timeout_s", "histogram_every")
"""Keys that verl's trainer over TransferQueue alone reads (``trainer.use_v1=true``)."""

EVERY_TOKEN = {"tokens": 1, "max_segments": 1_000_000, "answer_markers": []}
ESTIMATOR_DEFAULTS: dict[str, dict[str, Any]] = {
    "rredcot": {},
    "rredcot_ppo": {"value_estimator": "critic", "prior_from_group": False, "scale": "whiten"},
    "red": {"value_estimator": "reward_model", "segmenter": "fixed", "segmenter_kwargs": EVERY_TOKEN},
}
"""Name of an advantage estimator in verl -> what it changes of the defaults below."""


def option(default: Any, allowed: Allowed, says: str) -> Any:
    """A dataclass field that knows what is allowed and what it does; a mutable default is made anew each time."""
    metadata = {"allowed": allowed, "says": says}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """The keys of ``algorithm.rredcot``, in the order in which the method uses them."""

    segmenter: str | Mapping[str, Any] = option(
        "sentence", Named("segmenter"), "Where one step of reasoning ends and the next begins."
    )
    segmenter_kwargs: Mapping[str, Any] = option({}, MAPPING, "Options of the segmenter.")
    value_estimator: str | Mapping[str, Any] = option(
        "support", Named("value estimator"), "How the value V̂ of the state at each boundary is estimated."
    )
    value_kwargs: Mapping[str, Any] = option({}, MAPPING, "Options of the value estimator.")
    proposals: str = option(
        "group_or_ground_truth",
        OneOf(PROPOSALS),
        "Which answers are probed: rewarded answers of the group, the data set's answer, the group's or where there is "
        "none the data set's, or those of the data set's solutions.",
    )
    leave_one_out: bool = option(
        True,
        Flag(),
        "Keep a rollout's own reward out of its baseline, so that the policy gradient stays unbiased at lam=1.",
    )
    prior_from_group: bool = option(
        True, Flag(), "Use the mean reward of the group as the value of the prompt; false probes the prompt too."
    )
    length_normalize: bool = option(
        False,
        Flag(),
        "Use the geometric mean per token instead of the probability of the whole answer; meant for long answers.",
    )
    clip: float | None = option(
        None,
        Number(0.0, optional=True),
        "Bound on the likelihood ratio of own_ratio (null: 1), the weight of reference, or |V̂| of other probes and confidence before calibration (null: none).",
    )
    calibrate: str = option(
        "outcome",
        OneOf(CALIBRATIONS),
        "Turn raw values into predictions of the outcome by a fit that never sees the group's own outcomes. outcome: "
        "logistic regression on features of the prefix; trees: its mean with extremely randomised trees (needs "
        "scikit-learn); group_shift: one number added to the logit of V̂. Values in reward units are left alone.",
    )
    calibrate_window: str | int = option(
        "auto",
        CountOrZero("the batch at hand alone", automatic=True),
        "Past steps that the fit of calibrate sees in addition to the batch; auto uses as many as hold a few hundred "
        "rollouts.",
    )
    baseline: str | Mapping[str, Any] = option(
        "auto",
        Named("baseline", automatic=True),
        "What returns are measured from; auto uses least_variance where it is known to be safe, else value.",
    )
    baseline_kwargs: Mapping[str, Any] = option({}, MAPPING, "Options of the baseline.")
    turn_rewards: str = option(
        "keep",
        OneOf(TURN_REWARDS),
        "Rewards before the last token: kept on their segments, or redistributed.",
    )
    bridge: str = option(
        "auto",
        AutomaticText(),
        "Text before a probed answer that makes the model answer now; auto follows the responses.",
    )
    terminator: str = option(
        "auto", AutomaticText(), "Text after a probed answer that closes it; auto follows the responses."
    )
    max_probe_tokens: int = option(
        32, Count(), "Longest answer, terminator included, that is probed; longer ones are not proposed."
    )
    probe_backend: str = option(
        "auto",
        OneOf(PROBE_BACKENDS),
        "Where probes run. cached: in verl's log-prob pass, with one extra call for all probes; packed: in one call "
        "with the pass; batched: as rows of their own, with any engine; auto: cached where the engine can, else batched.",
    )
    shapers: tuple[str | Mapping[str, Any], ...] = option(
        (), Free("list of shapers, or of {name, options}"), "Steps that change the credit of segments, in order."
    )
    mode: str = option(
        "segment_gae",
        OneOf(MODES),
        "How credit becomes advantages: generalised advantage estimation over segments, or GRPO's advantage "
        "multiplied by a coefficient per segment.",
    )
    lam: float = option(
        1.0,
        Number(0.0, 1.0),
        "How much the credit of later segments counts in segment_gae, λ. Below 1 there is less variance, but the gradient is biased where values are wrong, and a "
        "policy can learn to raise values instead of rewards.",
    )
    lam_coarse: float | None = option(
        None,
        Number(0.0, 1.0, optional=True),
        "As lam, between the coarsest segments of the segmenter nested, while lam counts within them; null for one level.",
    )
    lam_turn_rewards: float | None = option(
        None,
        Number(0.0, 1.0, optional=True),
        "As lam, for rewards before the last token; null for lam. Below 1 a segment is judged more by its own rewards: "
        "less variance, and bias where it decides the rewards of later ones.",
    )
    credit_weight: float | str = option(
        0.0,
        Number(0.0, 1.0, automatic=True),
        "Share c of the unexpected changes in later segments that is taken out of the advantage of earlier ones. Less "
        "variance, and bias where values are wrong; auto estimates the share from past steps. Needs mode=segment_gae "
        "and lam=1.",
    )
    scale: str | None = option(
        None,
        OneOf(SCALES, optional=True),
        "What advantages are divided by; null follows verl's algorithm.norm_adv_by_std_in_grpo. whiten: mean 0 and "
        "variance 1 over the tokens of the batch.",
    )
    match_grpo: bool = option(
        False, Flag(), "Shift the advantages of each trace so that their mean over its tokens is GRPO's advantage."
    )
    credit_workers: str | int = option(
        "auto",
        CountOrZero("none beside the driver", automatic=True),
        "Processes on the driver's node that share its part of a step.",
    )
    credit_timeout_s: float = option(
        600.0,
        Number(1.0),
        "Seconds that a process of credit_workers may take before it is given up; the driver then works alone.",
    )
    dump_dir: str | None = option(
        None,
        Folder(),
        "Folder for the credit of up to 256 traces per step, as JSON lines; null writes none.",
    )
    dump_every: int = option(1, Count(), "Steps from one dump to the next.")
    dump_max_mb: int = option(
        1024, Count(), "Write no more dumps once the *.jsonl files of dump_dir reach this many megabytes."
    )
    histogram_every: int = option(
        10,
        CountOrZero("never"),
        "Steps from one set of histograms and tables in TensorBoard and W&B to the next, the first step included; 0 "
        "for never.",
    )
