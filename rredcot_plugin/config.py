"""The options of the method: ``algorithm.rredcot.*`` in a verl config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, fields
from typing import Any

from rredcot_plugin.allowed import OneOf
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.choices import choose_baseline, choose_window
from rredcot_plugin.options import Options
from rredcot_plugin.presets import GIVEN, PRESET, resolve_keys
from rredcot_plugin.registry import BASELINES, SEGMENTERS, SHAPERS, VALUE_ESTIMATORS
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import check_protocol, scores_read
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.forest import ForestCalibrator


@dataclass(frozen=True)
class RRedCoTConfig(Options):
    """Everything that ``assign_credit`` and the verl integration can be told: the fields of ``Options``, checked.

    ``scale=None`` follows verl's ``algorithm.norm_adv_by_std_in_grpo``: ``group_std`` where that is true
    (verl's default, and ours outside verl), else ``none``. Each key: docs/reference/configuration.md.

    Raises:
        ValueError: a value that is not allowed, naming the key, the value and what is; a ``preset``, which only
            ``from_mapping`` takes, since a constructor cannot tell what is given from what is a default.
    """

    preset: InitVar[str | None] = None

    def __post_init__(self, preset: str | None) -> None:
        if preset is not None:
            raise ValueError(
                f"preset={preset!r}: the constructor takes no preset, "
                f'use RRedCoTConfig.from_mapping({{"preset": {preset!r}, ...}})'
            )
        if isinstance(self.shapers, str | Mapping) or not isinstance(self.shapers, Iterable):
            raise ValueError(f"shapers={self.shapers!r}: expected a list of names, or of {{name, options}}")
        for name in ("segmenter_kwargs", "value_kwargs", "baseline_kwargs"):
            own = getattr(self, name)
            if not _is_options(own):
                raise ValueError(f"{name}={own!r}: expected a mapping of options, such as {{name: 16}}")
        object.__setattr__(self, "shapers", tuple(self.shapers))
        for key in fields(self):
            key.metadata["allowed"].check(key.name, getattr(self, key.name))
        self._check_baseline()
        self._check_credit_weight()
        self._check_turn_rewards()
        self.build_calibrator()  # names a package that it lacks

    def _check_baseline(self) -> None:
        """What is measured against a baseline is a return, and the baseline must not know the trace's own outcome."""
        if isinstance(self.baseline, str) and ":" not in self.baseline:
            OneOf(("auto", *BASELINES.names())).check("baseline", self.baseline)
        if self.baseline == "auto" and self.baseline_kwargs:
            raise ValueError(f"baseline_kwargs={dict(self.baseline_kwargs)!r}: name the baseline that takes them")
        if self.baseline in ("auto", "value"):
            return
        for key, value in {"mode": "segment_gae", "leave_one_out": True}.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"{key}={getattr(self, key)!r}: baseline={self.baseline} needs {key}={value!r}, or use baseline=value"
                )

    def _check_credit_weight(self) -> None:
        """Luck is taken out of a return, and what is to be expected must not know the trace's own outcome."""
        if self.credit_weight == 0.0:
            return
        held = {"mode": ("segment_gae",), "lam": (1.0,), "lam_coarse": (None, 1.0), "leave_one_out": (True,)}
        for key, allowed in held.items():
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"{key}={getattr(self, key)!r}: credit_weight={self.credit_weight} needs {key}={allowed[0]!r}, "
                    f"or use credit_weight=0"
                )

    def _check_turn_rewards(self) -> None:
        """A λ for rewards on the way needs rewards on the way, and values that are of the outcome alone."""
        if self.lam_turn_rewards is None:
            return
        if not self.keeps_turn_rewards:
            raise ValueError(
                f"lam_turn_rewards={self.lam_turn_rewards}: turn_rewards={self.turn_rewards} leaves no rewards before the "
                "last token, or use turn_rewards=keep"
            )
        if self.mode != "segment_gae":
            raise ValueError(
                f"lam_turn_rewards={self.lam_turn_rewards}: mode={self.mode} sums nothing over segments, or use mode=segment_gae"
            )
        if self.has_critic:
            raise ValueError(
                f"lam_turn_rewards={self.lam_turn_rewards}: the values of a critic are of all rewards, set lam instead"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RRedCoTConfig:
        """Build from a plain mapping (a Hydra group, say), checking names that need the registries too.

        ``preset`` names a set of keys (``presets.PRESETS``); the mapping's other keys win over it.

        >>> RRedCoTConfig.from_mapping({"preset": "lean"}).baseline
        'trace'
        >>> RRedCoTConfig.from_mapping({"lambda": 0.9})
        Traceback (most recent call last):
        ValueError: unknown key 'lambda' in algorithm.rredcot. Did you mean 'lam'? ...

        Raises:
            ValueError: an unknown key or preset (with the nearest valid one), or a value that is not allowed.
        """
        return cls.from_keys(*resolve_keys(mapping))

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any], sources: Mapping[str, str]) -> RRedCoTConfig:
        """Build from what ``presets.resolve_keys`` returns.

        Raises:
            ValueError: a value that is not allowed; options that do not go with what a preset has named.
        """
        config = cls(**keys)
        config._check_levels(config.build_segmenter())
        for name, options in (("value_estimator", "value_kwargs"), ("baseline", "baseline_kwargs")):
            source = sources.get(name, GIVEN)
            try:
                config._build(name)
            except ValueError as error:
                if not source.startswith(PRESET) or not sources.get(options, "").startswith(GIVEN):
                    raise
                raise ValueError(
                    f"{error}. {source} sets {name}={keys[name]}: leave {options} out, or give {name} as well"
                ) from error
        config.build_shapers()
        return config

    def _build(self, key: str) -> Any:
        return self.build_value_estimator() if key == "value_estimator" else self.build_baseline(log_probs=True)

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
        estimator = VALUE_ESTIMATORS.get(self.value_estimator, **self.value_kwargs)
        check_protocol(estimator)
        return estimator

    def build_baseline(self, *, log_probs: bool, given: bool = False) -> Any:
        """The baseline; ``log_probs``: whether the rollouts carry them, ``given``: whether values are given instead of
        estimated, from which ``auto`` measures."""
        name = "value" if given and self.baseline == "auto" else self.baseline_for(log_probs=log_probs)
        baseline = BASELINES.get(name, **self.baseline_kwargs)
        needs_of(baseline)  # refuses names of nothing
        return baseline

    def baseline_for(self, *, log_probs: bool) -> str | Mapping[str, Any]:
        """The baseline that ``auto`` stands for (``choices.choose_baseline``); ``log_probs``: whether the rollouts carry
        them."""
        name: str | Mapping[str, Any] = choose_baseline(self, log_probs=log_probs).value
        return name

    @property
    def has_critic(self) -> bool:
        """Whether a trained critic's values are among what the estimator reads."""
        return "critic" in scores_read(self.build_value_estimator())

    @property
    def keeps_turn_rewards(self) -> bool:
        """Whether rewards on the way stay where they are, so that values are of what is still to come."""
        return self.turn_rewards == "keep"

    @property
    def lam_on_the_way(self) -> float:
        """λ of rewards on the way."""
        return self.lam if self.lam_turn_rewards is None else self.lam_turn_rewards

    def build_calibrator(self) -> OutcomeCalibrator:
        window = choose_window(self).value
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
    if not _is_options(entry.get("options", {})):
        raise ValueError(f"shapers: options of {entry['name']}: expected a mapping, got {entry['options']!r}")
    return SHAPERS.get(entry["name"], **entry.get("options", {}))


def _is_options(given: Any) -> bool:
    """Whether these can be keywords; YAML's keys may be numbers."""
    return isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
