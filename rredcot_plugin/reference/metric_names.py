"""Everything that a run logs: name, unit, meaning, what a healthy number looks like, and what to do about others.

A test fails where a run logs what is not here, or the source names what is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = ("mean", "max", "min")
MEAN, MAX = ("mean",), ("max",)


@dataclass(frozen=True)
class Metric:
    """``suffixes`` are put after ``name`` and a slash; without them the name is whole. ``otherwise``: what to do when the
    number is not ``healthy``; empty where there is nothing to do."""

    name: str
    unit: str
    meaning: str
    healthy: str
    otherwise: str = ""
    suffixes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The full names, as logged."""
        return [f"{self.name}/{suffix}" for suffix in self.suffixes] or [self.name]


@dataclass(frozen=True)
class Section:
    """Metrics under one heading; ``when`` says in which runs they are logged, and how they are counted."""

    title: str
    when: str
    metrics: tuple[Metric, ...]


SEGMENTS = Section("Segments", "", (
    Metric("rredcot/segments/per_trace", "segments", "Segments per trace, the answer included.", "3 to 64",
           "Below 3 there is little to redistribute, and at 1 nothing: use another segmenter, such as sentence or "
           "newline.", ALL),
    Metric("rredcot/segments/tokens", "tokens", "Length of a segment.", "a step of reasoning",
           "A maximum near the response length means one giant segment: use a segmenter that finds the ends of its steps.", ALL),
    Metric("rredcot/segments/inexact", "0 or 1", "1: the segmenter is known to place boundaries that depend on later "
           "tokens, which biases the gradient.", "0",
           "Use a segmenter without _retrospective in its name, or test your own with rredcot_plugin.check_segmenter.", MEAN),
))  # fmt: skip

VALUES = Section("Values", "brier, ece and explained_variance describe the values that are used: those of a group never saw "
                 "its own outcomes.", (
    Metric("rredcot/value/prompt", "reward", "Value of the prompt.", "near critic/score/mean", "", ALL),
    Metric("rredcot/value/raw", "reward", "The estimator's value at the boundaries, before calibration, in traces with a "
           "proposal.", "far below the reward until late in a trace is normal for support",
           "Near 0 to the end: see whether bridge and terminator match how the model answers.", ALL),
    Metric("rredcot/value/boundary", "reward", "Value at the boundaries after the prompt, as used.",
           "mean near critic/score/mean, minimum and maximum apart",
           "All alike: values say nothing; see rredcot/value/explained_variance.", ALL),
    Metric("rredcot/value/before_answer", "reward", "Value of the last state, where the answer begins.",
           "closer to the outcome than the value of the prompt", "As for rredcot/value/boundary.", ("mean", "max")),
    Metric("rredcot/value/window_age", "versions", "Mean age of fitted rollouts, the newest having 0.", "near 2", "", MEAN),
    Metric("rredcot/value/trees_share", "0 to 0.5", "Weight of the trees in the fit, with calibrate: trees.",
           "0.5 after 512 rollouts", "Always less: calibrate_window is too short.", MEAN),
    Metric("rredcot/value/brier", "0 to 1", "Mean squared error of values against outcomes, both on [0, 1].",
           "below the variance of the outcome, 0.25 at 50 % success",
           "More rollouts per step, a longer calibrate_window, or calibrate: group_shift.", MEAN),
    Metric("rredcot/value/ece", "0 to 1", "Expected calibration error over ten bins.",
           "below 0.1 with a few hundred traces per step", "As for rredcot/value/brier.", MEAN),
    Metric("rredcot/value/explained_variance", "up to 1", "1 − var(R − V̂) / var(R).", "above 0",
           "Below 0 values are worse than the mean: more rollouts per step, a longer calibrate_window, or preset: lean.", MEAN),
))  # fmt: skip

CREDIT = Section("Credit", "", (
    Metric("rredcot/credit/segment_reward", "reward", "Redistributed reward r of a segment.",
           "between minus and plus the range of the reward", "Values are far off: see rredcot/value/brier.", ALL),
    Metric("rredcot/credit/abs_delta", "reward", "Absolute segment credit |δ|.", "above 0",
           "At 0 nothing is redistributed: see rredcot/segments/per_trace and rredcot/probes/proposals.", ("mean", "max")),
    Metric("rredcot/credit/baseline", "reward", "Baseline of a segment, that is, what returns are measured from; for a "
           "baseline per token its mean over the segment.", "like rredcot/value/boundary, below it where improbable steps "
           "mostly fail", "", ALL),
    Metric("rredcot/credit/segment_advantage", "scaled", "Advantage of a segment, divided by scale; before whiten and match_grpo.",
           "within ±5; the mean is above 0 with baseline: least_variance and near 0 with baseline: value",
           "Larger: see scale, and whether groups have nearly equal rewards.", ALL),
    Metric("rredcot/credit/process_rewards", "reward", "What process_rewards moved from the end of a trace to the tokens that "
           "earned it, absolute values.", "above 0 if your reward function returns them", "", MEAN),
    Metric("rredcot/credit/negative_share", "0 to 1", "Share of segments with negative credit.", "0.2 to 0.8", "", MEAN),
    Metric("rredcot/credit/answer_share", "0 to 1", "Share of a trace's |δ| that falls on its answer segment.",
           "below 0.9", "Near 1 nothing is redistributed: values do not see the outcome coming.", MEAN),
    Metric("rredcot/credit/credit_weight", "0 to 1", "Weight that credit_weight=auto chose.", "0 in the first two steps", "", MEAN),
    Metric("rredcot/credit/return_error", "reward", "Largest |Σ r − R| over the traces.", "rounding, below 1e-5",
           "Report it: this is a bug.", MAX),
    Metric("rredcot/credit/shaping_residual", "reward", "What shapers changed of a trace's sum before it went to the answer "
           "segment; only with shapers.", "0 up to rounding", "A shaper of your own does not keep the sum.", MAX),
))  # fmt: skip

PROBES = Section("Probes", "", (
    Metric("rredcot/probes/per_trace", "probes", "Boundaries times proposals of a trace.", "below 128",
           "Lower segmenter_kwargs.max_segments or value_kwargs.max_proposals.", MEAN),
    Metric("rredcot/probes/proposals", "answers", "Proposals of a trace.", "1 or more",
           "See rredcot/fallback/no_proposal.", MEAN),
    Metric("rredcot/probes/token_overhead", "ratio", "Probe tokens over prompt and response tokens.",
           "below 0.3, more on very short traces", "As for rredcot/probes/per_trace.", MEAN),
    Metric("rredcot/probes/in_pass", "0 or 1", "1: probes ran in the log-prob pass; 0: as rows of their own, or there were "
           "none.", "1", "`rredcot explain` says what keeps them out of the pass.", MEAN),
))  # fmt: skip

DRIVER = Section("Work on the driver", "", (
    Metric("rredcot/sessions/rows", "rows", "Outputs of a session.", "1 unless the agent loop rewrites contexts", "", MEAN),
    Metric("rredcot/driver/workers", "processes", "Processes beside the driver that share its part of the step "
           "(credit_workers); 0: the driver alone.", "0 in small steps, else up to 32", "", MEAN),
))  # fmt: skip

MONTE_CARLO = Section("Monte-Carlo continuations", "Only with value_estimator: monte_carlo.", (
    Metric("rredcot/monte_carlo/continuations", "requests", "Continuations per trace; equal prefixes are continued once.",
           "boundaries times samples, or fewer", "", MEAN),
    Metric("rredcot/monte_carlo/tokens", "tokens", "Tokens generated for them, per trace.", "what you can afford",
           "Lower samples or max_segments, or set max_tokens.", MEAN),
    Metric("rredcot/monte_carlo/failed", "0 to 1", "Share on which the rollout server or the reward function failed.",
           "0", "The boundaries have fewer samples; at 1 the run stops. The log names the errors.", MEAN),
    Metric("rredcot/monte_carlo/left_out", "0 to 1", "Share of traces with a state that could not be restored.", "0", "", MEAN),
))  # fmt: skip

FALLBACKS = Section("Fallbacks", "Shares of the traces of a step, unless the meaning says otherwise.", (
    Metric("rredcot/fallback/ground_truth", "0 to 1", "No sibling gave a rewarded answer, so the data set's answer was "
           "proposed.", "low, but not early on and on hard prompts", "", MEAN),
    Metric("rredcot/fallback/no_proposal", "0 to 1", "Nothing could be proposed.", "near 0",
           "Give a ground truth as the model would write it, or larger groups.", MEAN),
    Metric("rredcot/fallback/group_mean", "0 to 1", "Boundaries start from the mean of the group, for any reason.",
           "near 0", "See the other fallbacks.", MEAN),
    Metric("rredcot/fallback/no_state_value", "0 to 1", "Share of later turns without a state_value.", "0", "", MEAN),
    Metric("rredcot/fallback/process_rewards", "0 to 1", "Share of traces with process_rewards that are not all pairs of a character "
           "and a number; the readable pairs count.", "0", "", MEAN),
    Metric("rredcot/fallback/answer_too_long", "0 to 1", "Share of proposals that exceed max_probe_tokens and are dropped.",
           "0", "Raise max_probe_tokens, and set length_normalize for answers of more than some ten tokens.", MEAN),
    Metric("rredcot/fallback/uncalibrated", "0 or 1", "All outcomes of the step and the window are equal, so there is "
           "nothing to fit.", "0", "", MEAN),
    Metric("rredcot/fallback/missing_row", "0 to 1", "Share of sessions with a missing output; they consist of the "
           "others.", "0", "", MEAN),
    Metric("rredcot/fallback/lost_end", "0 to 1", "Share of sessions whose last output, aborted or rejected, has no token left; "
           "they earn nothing, but count in their group.", "near 0", "", MEAN),
    Metric("rredcot/fallback/nonfinite_reward", "0 to 1", "The reward is NaN or infinite; the trace earns nothing and "
           "counts nowhere.", "0", "Fix the reward function.", MEAN),
))  # fmt: skip

HISTOGRAMS = Section("Histograms and a table", "Where trainer.logger has tensorboard or wandb, in the first step of a process "
                     "and every histogram_every steps. They do not go through verl's metrics, so the console and other "
                     "loggers do not show them. Mini-batches of a step are pooled, texts are cut to 300 characters, and a "
                     "tracker that fails gets one warning. The table is under Text in TensorBoard.", (
    Metric("rredcot/credit/histogram", "reward", "Credit δ of every segment.", "a spread",
           "A spike at 0 alone: nothing is redistributed."),
    Metric("rredcot/credit/segment_advantage/histogram", "scaled", "Mean advantage that the tokens of a segment get in the "
           "update.", "a spread"),
    Metric("rredcot/value/boundary/histogram", "reward", "Value at every boundary after the prompt, as used.", "a spread"),
    Metric("rredcot/segments/tokens/histogram", "tokens", "Length of every segment.", "as in rredcot/segments/tokens"),
    Metric("rredcot/segments/per_trace/histogram", "segments", "Segments of every trace.", "as in rredcot/segments/per_trace"),
    Metric("rredcot/credit/histogram_dropped", "numbers", "How many of all these were dropped because they were not finite.",
           "0", "See rredcot/fallback/nonfinite_reward."),
    Metric("rredcot/credit/worst_segments", "table", "The segments with the lowest credit, of eight prompts at most: end of "
           "the prompt, ground truth, reward, text, value before and after.", "steps that are wrong"),
))  # fmt: skip

TIME = Section("Time", "Part of verl's timing_s/step.", (
    Metric("timing_s/rredcot_plan", "seconds", "Reading the batch and its signals, segmenting, building probes, on the "
           "driver.", "a small share of timing_s/step", "More credit_workers."),
    Metric("timing_s/rredcot_probes", "seconds", "Forward pass of the probes; inside timing_s/old_log_prob with cached, 0 "
           "with packed, where it cannot be told apart.", "a share of timing_s/old_log_prob",
           "As for rredcot/probes/per_trace."),
    Metric("timing_s/rredcot_monte_carlo", "seconds", "Continuations and their rewards, inside timing_s/gen.",
           "what you can afford", "As for rredcot/monte_carlo/tokens."),
    Metric("timing_s/rredcot_reward_model", "seconds", "Forward pass of the reward model of reward_model and red.",
           "like timing_s/old_log_prob for a model of the same size"),
    Metric("timing_s/rredcot_credit", "seconds", "Calibration, redistribution, advantages and what is shown of them, on the "
           "driver, inside timing_s/adv.", "a small share of timing_s/step", "More credit_workers."),
))  # fmt: skip

SECTIONS = (SEGMENTS, VALUES, CREDIT, PROBES, DRIVER, MONTE_CARLO, FALLBACKS, HISTOGRAMS, TIME)


def known_metrics() -> set[str]:
    """Every name that a run may log."""
    return {name for section in SECTIONS for metric in section.metrics for name in metric.names}
