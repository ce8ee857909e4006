"""What is compared: ways of giving credit, by name. All of them cut a trace at its lines."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.presets import PRESETS
from rredcot_plugin.values.base import calibrates, proposal_limits, scores_read
from rredcot_plugin.values.features import NAMES

GRPO, RLOO, REINFORCE_PLUS_PLUS, OTB, NO_BASELINE, CREDIT, NO_REWARD, SHUFFLED, WHOLE, TRUE = KINDS = (
    "grpo",
    "rloo",
    "reinforce_plus_plus",
    "otb",
    "no_baseline",
    "credit",
    "no_reward",
    "shuffled",
    "whole",
    "true",
)
"""verl's own advantages, of four estimators; the reward itself; ``assign_credit``; segment log-probs instead of rewards;
baselines of other groups' traces; one baseline of least variance a trace; values that no estimator can beat."""

SEGMENTER = "newline"

FORMER_WINDOW = 4
"""``calibrate_window`` of the default, before it was ``auto``."""


MEASURED_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "lean": {"value_estimator": "confidence", "baseline": "trace"},
    "low_variance": {
        "scale": "none",
        "baseline": "trace",
        "baseline_kwargs": {"floor": 0.0001, "pseudo_rollouts": 32},
        "credit_weight": 0.5,
    },
}
"""What these presets were in the committed runs, which name the preset alone."""


@dataclass(frozen=True)
class Judging:
    """What RED's reward model learns from: ``questions`` answered ``group`` times by the first policy, each answer
    read ``epochs`` times; squared error to the reward."""

    questions: int = 1024
    group: int = 4
    epochs: int = 3
    batch: int = 32
    rate: float = 5e-4


@dataclass(frozen=True)
class System:
    """One way of giving credit: ``options`` of ``algorithm.rredcot`` beside the segmenter; ``by_lines``: rewards stand on
    the lines that earned them."""

    name: str
    kind: str = CREDIT
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    by_lines: bool = False

    @property
    def config(self) -> RRedCoTConfig:
        return RRedCoTConfig.from_mapping({"segmenter": SEGMENTER, **self.options})

    @property
    def identity(self) -> dict[str, Any]:
        """What a result of this system depends on; the features too, where the fit reads them."""
        known: dict[str, Any] = {"kind": self.kind, "options": dict(self.options)}
        if self.estimates:
            config = self.config
            known["options"].setdefault("baseline", config.baseline)  # what the default is has changed once
            preset = self.options.get("preset")
            if preset is not None and PRESETS[preset].keys != MEASURED_PRESETS.get(preset):
                known["preset"] = dict(PRESETS[preset].keys)  # a name alone would stand for two sets of options
            fitted = config.calibrate != "none" and calibrates(config.build_value_estimator())
            known["features"] = list(NAMES) if fitted else []
            if fitted and config.calibrate_window != FORMER_WINDOW:  # earlier runs do not name theirs
                known["options"].setdefault("calibrate_window", config.calibrate_window)
        if self.by_lines:
            known["by_lines"] = True
        if self.needs_reward_model:
            known["judging"] = asdict(Judging())
        return known

    @property
    def estimates(self) -> bool:
        """Whether it has values of states, from the estimator of its options."""
        return self.kind in (CREDIT, SHUFFLED)

    @property
    def probes(self) -> bool:
        """Whether it asks the model how probable answers are."""
        return self.estimates and bool(proposal_limits(self.config.build_value_estimator()))

    @property
    def reads_squares(self) -> bool:
        """Whether it weighs tokens by Σ_v π_v²."""
        return self.kind == OTB or (
            self.estimates and "sum_pi_squared" in needs_of(self.config.build_baseline(log_probs=True))
        )

    @property
    def needs_reward_model(self) -> bool:
        return self.estimates and "reward_model" in scores_read(self.config.build_value_estimator())


PAPER = {"mode": "weighted", "proposals": "group"}
"""How the paper turns δ into advantages, by our reading (docs/reference/assumptions.md)."""

RED = {"value_estimator": "reward_model", "segmenter": "fixed", "segmenter_kwargs": {"tokens": 1, "max_segments": 1_000_000,
                                                                                    "answer_markers": []}}  # fmt: skip
"""As ``algorithm.adv_estimator=red`` has it: a segment a token."""

DEFAULT_SYSTEMS = (
    System("grpo", GRPO),
    System("mc_grpo", options={"value_estimator": "monte_carlo", "lam": 0.0}),
    System("attention", options={"value_estimator": "attention", **PAPER}),
    System("gradient", options={"value_estimator": "gradient", **PAPER}),
    System("rredcot_paper", options={"calibrate": "none", **PAPER}),
    System("red", options=RED),
    System("rredcot"),
    System("rredcot_lam95", options={"lam": 0.95}),
    System("value_baseline", options={"baseline": "value"}),
    System("trace_baseline", WHOLE),
    System("control_no_reward", NO_REWARD),
    System("control_shuffled_values", SHUFFLED),
)
MORE_SYSTEMS = (
    System("rloo", RLOO),
    System("reinforce_plus_plus", REINFORCE_PLUS_PLUS),
    System("otb", OTB),
    System(
        "otb_leave_one_out",
        options={"segmenter": "none", "baseline": "token", "scale": "none", "calibrate": "none"},
    ),
    System("no_baseline", NO_BASELINE),
    System("true_credit", TRUE, {"lam": 0.0, "scale": "none"}),
    System("true_baseline", TRUE, {"scale": "none"}),
    System("line_rewards", by_lines=True),
    System("line_rewards_lam50", options={"lam_turn_rewards": 0.5}, by_lines=True),
    System("line_rewards_lam0", options={"lam_turn_rewards": 0.0}, by_lines=True),
    System("line_rewards_reinforce_plus_plus", REINFORCE_PLUS_PLUS, by_lines=True),
    System("rredcot_window4", options={"calibrate_window": FORMER_WINDOW}),
    System("rredcot_unscaled", options={"scale": "none"}),
    System("red_lam0", options={**RED, "lam": 0.0}),
    System("rredcot_raw", options={"calibrate": "none", "lam": 0.0}),
    System("mc_grpo_weighted", options={"value_estimator": "monte_carlo", **PAPER}),
    System("mc_grpo_lam1", options={"value_estimator": "monte_carlo"}),
)
"""Known by name, not run unless asked for."""


def parse_system(words: Sequence[str]) -> System:
    """``name key=value …``: a system of one's own; values are YAML.

    >>> parse_system(["mine", "lam=0.5", "value_kwargs={max_proposals: 2}"]).options
    {'lam': 0.5, 'value_kwargs': {'max_proposals': 2}}

    Raises:
        ValueError: a name that is taken, a word without "=", or an option that does not exist.
    """
    name, *pairs = words
    if name in {system.name for system in (*DEFAULT_SYSTEMS, *MORE_SYSTEMS)}:
        raise ValueError(f"--system {name}: this name is taken; choose another one")
    if not name.isidentifier():
        raise ValueError(f"--system {name}: expected a name of letters, digits and _, then key=value …")
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--system {name}: expected key=value, got {pair!r}")
        options[key] = yaml.safe_load(value)
    system = System(name, options=options)
    try:
        system.config.build_value_estimator()
    except ValueError as error:
        raise ValueError(f"--system {name}: {error}") from error
    return system


def choose(names: Sequence[str] | None, own: Sequence[System]) -> list[System]:
    """The systems of these names in the order of the lists above, with one's own; all default ones for None.

    Raises:
        ValueError: a name that does not exist, with those that do.
    """
    known = {system.name: system for system in (*DEFAULT_SYSTEMS, *MORE_SYSTEMS)}
    wanted = [system.name for system in DEFAULT_SYSTEMS] if names is None else list(names)
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(f"--systems {name}:{hint} Known: {', '.join(known)}")
    return [system for name, system in known.items() if name in wanted] + list(own)
