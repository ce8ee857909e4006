"""The options of the method: ``algorithm.rredcot.*`` in a verl config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rredcot_plugin.registry import (
    BASELINES,
    SEGMENTERS,
    SHAPERS,
    VALUE_ESTIMATORS,
    check_count,
    check_number,
    nearest,
)
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import calibrates, scores_read
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.forest import ForestCalibrator

PROPOSALS = ("group", "ground_truth", "group_or_ground_truth", "reference")
CALIBRATIONS = ("none", "group_shift", "outcome", "trees")
PROBE_BACKENDS = ("auto", "cached", "packed", "batched")
MODES = ("segment_gae", "weighted")
SCALES = ("group_std", "none", "batch_std", "whiten")


@dataclass(frozen=True)
class RRedCoTConfig:
    """Everything that ``assign_credit`` and the verl integration can be told.

    ``scale=None`` follows verl's ``algorithm.norm_adv_by_std_in_grpo``: ``group_std`` where that is true
    (verl's default, and ours outside verl), else ``none``. See docs/reference/configuration.md for each key.

    Raises:
        ValueError: a value that is not allowed, naming the key, the value and what is.
    """

    segmenter: str | Mapping[str, Any] = "sentence"
    segmenter_kwargs: Mapping[str, Any] = field(default_factory=dict)
    value_estimator: str | Mapping[str, Any] = "support"
    value_kwargs: Mapping[str, Any] = field(default_factory=dict)
    proposals: str = "group_or_ground_truth"
    leave_one_out: bool = True
    prior_from_group: bool = True
    length_normalize: bool = False
    clip: float | None = None
    calibrate: str = "outcome"
    calibrate_window: str | int = "auto"
    baseline: str | Mapping[str, Any] = "auto"
    baseline_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bridge: str = "auto"
    terminator: str = "auto"
    max_probe_tokens: int = 32
    probe_backend: str = "auto"
    shapers: tuple[str | Mapping[str, Any], ...] = ()
    mode: str = "segment_gae"
    lam: float = 1.0
    lam_coarse: float | None = None
    scale: str | None = None
    match_grpo: bool = False
    credit_workers: str | int = "auto"
    credit_timeout_s: float = 600.0
    dump_dir: str | None = None
    dump_every: int = 1
    dump_max_mb: int = 1024
    log_every: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.shapers, str):
            raise ValueError(f"shapers={self.shapers!r}: expected a list of names, or of {{name, options}}")
        object.__setattr__(self, "shapers", tuple(self.shapers))
        self._one_of("proposals", PROPOSALS)
        self._one_of("calibrate", CALIBRATIONS)
        self._one_of("probe_backend", PROBE_BACKENDS)
        self._one_of("mode", MODES)
        self._check_baseline()
        if self.scale is not None:
            self._one_of("scale", SCALES)
        for key in ("leave_one_out", "prior_from_group", "length_normalize", "match_grpo"):
            if not isinstance(getattr(self, key), bool):
                raise ValueError(f"{key}={getattr(self, key)!r}: allowed are true and false")
        check_number("lam", self.lam, 0.0, 1.0)
        if self.lam_coarse is not None:
            check_number("lam_coarse", self.lam_coarse, 0.0, 1.0)
        if self.clip is not None:
            check_number("clip", self.clip, 0.0)
        for key in ("max_probe_tokens", "dump_every", "dump_max_mb"):
            check_count(key, getattr(self, key))
        if self.calibrate_window != "auto" and not _is_whole(self.calibrate_window):
            raise ValueError(
                f"calibrate_window={self.calibrate_window!r}: allowed are whole numbers from 0 (the batch at hand alone), "
                "or 'auto'"
            )
        if not _is_whole(self.log_every):
            raise ValueError(f"log_every={self.log_every!r}: allowed are whole numbers from 1, and 0 for never")
        if self.credit_workers != "auto" and not _is_whole(self.credit_workers):
            raise ValueError(
                f"credit_workers={self.credit_workers!r}: allowed are whole numbers from 0 (none beside the driver), or 'auto'"
            )
        check_number("credit_timeout_s", self.credit_timeout_s, 1.0)
        self.build_calibrator()  # names a package that it lacks
        for key in ("bridge", "terminator"):
            if not isinstance(getattr(self, key), str):
                raise ValueError(f"{key}={getattr(self, key)!r}: allowed is a text, or 'auto'")

    def _check_baseline(self) -> None:
        """What is measured against a baseline is a return, and the baseline must not know the trace's own outcome."""
        if isinstance(self.baseline, str) and ":" not in self.baseline:
            self._one_of("baseline", ("auto", *BASELINES.names()))
        if self.baseline == "auto" and self.baseline_kwargs:
            raise ValueError(f"baseline_kwargs={dict(self.baseline_kwargs)!r}: name the baseline that takes them")
        if self.baseline in ("auto", "value"):
            return
        for key, value in {"mode": "segment_gae", "leave_one_out": True}.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"{key}={getattr(self, key)!r}: baseline={self.baseline} needs {key}={value!r}, or take baseline=value"
                )

    def _one_of(self, key: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, key)
        if value not in allowed:
            hint = nearest(str(value), list(allowed))
            raise ValueError(f"{key}={value!r}:{hint} Allowed: {', '.join(allowed)}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RRedCoTConfig:
        """Build from a plain mapping (a Hydra group, say), checking names that need the registries too.

        >>> RRedCoTConfig.from_mapping({"lambda": 0.9})
        Traceback (most recent call last):
        ValueError: unknown key 'lambda' in algorithm.rredcot. Did you mean 'lam'? ...

        Raises:
            ValueError: an unknown key (with the nearest valid one), or a value that is not allowed.
        """
        known = [f.name for f in fields(cls)]
        for key in mapping:
            if key not in known:
                hint = nearest(str(key), known)
                raise ValueError(f"unknown key {key!r} in algorithm.rredcot.{hint} Known: {', '.join(known)}")
        config = cls(**dict(mapping))
        config._check_levels(config.build_segmenter())
        config.build_value_estimator()
        config.build_baseline(log_probs=True)
        config.build_shapers()
        return config

    def build_segmenter(self) -> Any:
        return SEGMENTERS.get(self.segmenter, **self.segmenter_kwargs)

    def build_levels(self, rollouts: Rollouts) -> list[Segments]:
        """Segments of every level, coarse to fine; the last one is what the segmenter itself returns.

        Raises:
            ValueError: ``lam_coarse`` with a segmenter that has one level only.
        """
        segmenter = self.build_segmenter()
        self._check_levels(segmenter)
        levels: list[Segments] = (
            [segmenter(rollouts)] if self.lam_coarse is None else segmenter.all_levels(rollouts)
        )
        return levels

    def _check_levels(self, segmenter: Any) -> None:
        if self.lam_coarse is not None and not hasattr(segmenter, "all_levels"):
            raise ValueError(
                f"lam_coarse={self.lam_coarse}: segmenter={self.segmenter!r} has one level, use nested"
            )

    def build_value_estimator(self) -> Any:
        return VALUE_ESTIMATORS.get(self.value_estimator, **self.value_kwargs)

    def build_baseline(self, *, log_probs: bool, given: bool = False) -> Any:
        """The baseline; ``log_probs``: whether the rollouts carry them, ``given``: whether values are given instead of
        estimated, from which ``auto`` measures."""
        name = "value" if given and self.baseline == "auto" else self.baseline_for(log_probs=log_probs)
        return BASELINES.get(name, **self.baseline_kwargs)

    def baseline_for(self, *, log_probs: bool) -> str | Mapping[str, Any]:
        """The baseline that ``auto`` stands for; ``log_probs``: whether the rollouts carry them.

        ``auto`` takes ``least_variance`` where that is measured to help and cannot harm: λ = 1, where Â is the return and any
        baseline of the prefix leaves its expectation alone, with a calibrated estimator (docs/evidence/gradient.md).
        """
        if self.baseline != "auto":
            return self.baseline
        plain = self.mode == "segment_gae" and self.lam == 1.0 and self.lam_coarse in (None, 1.0)
        fitted = self.calibrate in ("outcome", "trees") and calibrates(self.build_value_estimator())
        compared = self.leave_one_out and not self.match_grpo
        shifted = plain and fitted and compared and log_probs
        return "least_variance" if shifted else "value"

    @property
    def has_critic(self) -> bool:
        """Whether a trained critic's values are among what the estimator reads."""
        return "critic" in scores_read(self.build_value_estimator())

    def build_calibrator(self) -> OutcomeCalibrator:
        window = None if self.calibrate_window == "auto" else int(self.calibrate_window)
        if self.calibrate == "trees":
            return ForestCalibrator(window)
        return OutcomeCalibrator(window, shift_only=self.calibrate == "group_shift")

    def build_shapers(self) -> list[Any]:
        return [_shaper(entry) for entry in self.shapers]


def _shaper(entry: str | Mapping[str, Any]) -> Any:
    if isinstance(entry, str):
        return SHAPERS.get(entry)
    if not isinstance(entry, Mapping) or set(entry) - {"name", "options"} or "name" not in entry:
        raise ValueError(f"shapers: expected a name or {{name, options}}, got {entry!r}")
    return SHAPERS.get(entry["name"], **entry.get("options", {}))


def _is_whole(value: object) -> bool:
    """Whether this is a whole number from 0; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
