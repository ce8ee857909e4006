"""The gradient is exact at λ = 1 for every segmenter, limit and baseline, by enumeration of all groups of a policy."""

from __future__ import annotations

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.segmenters import quantile
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.features import NAMES
from rredcot_plugin.values.labelled_states import LabelledStates
from tests.unit.text_policy import TRACES, TextPolicy, expected_gradient

EXACT, BIASED = 1e-6, 1e-2
"""Of the norm of the gradient."""

BESIDE = [0, 3, 5, 7, 9, 12]
OPTIONS: dict[str, dict] = {
    "fixed": {"tokens": 2},
    "entropy": {"quantile": 0.5},
    "probability": {"threshold": 0.6, "interval": 1},
    "adaptive": {"bin_tokens": 1, "threshold": 0.1},
    "adaptive_retrospective": {"bin_tokens": 1, "penalty": 0.01},
    "hybrid": {"quantile": 0.5, "max_stretch_tokens": 2},
    "nested": {"levels": ["turn", "keyword", "sentence"]},
}
SHIPPED = [name for name in rr.list_segmenters() if name != "none" and not name.endswith("_retrospective")]
LIMITS: list[dict] = [
    {},
    {"max_segments": 2, "max_response_tokens": 4},
    {"max_segments": 3, "min_segment_tokens": 2},
]


class FromThePast(OutcomeCalibrator):
    """One past step of 40 states with arbitrary features: its fit looks at everything that a state tells.

    The span of rewards comes from there too. In a run's first step it comes from the batch (docs/reference/math.md).
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.load_state_dict(
            {
                "features": [2 * torch.randn(40, len(NAMES), generator=generator, dtype=torch.float64)],
                "outcome": [(torch.rand(40, generator=generator) > 0.5).double()],
                "weight": [torch.full((40,), 0.5, dtype=torch.float64)],
            }
        )


class AnyFit(FromThePast):
    """In the place of a fit an arbitrary function of everything that a state tells: exactness must not need more."""

    weights = torch.randn(2, len(NAMES), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def calibrate(self, states: LabelledStates, *rest: object, remember: bool = True) -> torch.Tensor:
        return (states.features @ self.weights[0]).sigmoid()

    def baselines(self, states: LabelledStates, *rest: object) -> torch.Tensor:
        return (states.features @ self.weights[1]).sigmoid()


@pytest.fixture(autouse=True)
def _quantiles_of_short_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of four tokens have quantiles from the first token on."""
    monkeypatch.setattr(quantile, "FIRST", 1)


def bias(
    name: str, limits: dict, size: int = 2, seed: int = 0, fit: type[OutcomeCalibrator] = AnyFit, **options: object
) -> float:
    """‖E[ĝ] − g‖ / ‖g‖."""
    policy = TextPolicy.random(seed)
    config = rr.RRedCoTConfig.from_mapping(
        {
            "segmenter": name,
            "segmenter_kwargs": OPTIONS.get(name, {}) | limits,
            "value_estimator": "confidence",
            "scale": "none",
            **options,
        }
    )
    found = expected_gradient(policy, config, size, fit, BESIDE)
    return float((found - policy.exact_gradient).norm() / policy.exact_gradient.norm())


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_segmenter_leaves_the_gradient_exact(name: str, limits: dict) -> None:
    assert bias(name, limits, baseline="least_variance") < EXACT


@pytest.mark.parametrize("baseline", ["value", "trace", "token"])
@pytest.mark.parametrize("name", ["newline", "sentence", "hybrid"])
def test_with_every_baseline(name: str, baseline: str) -> None:
    assert bias(name, LIMITS[1], baseline=baseline) < EXACT


def test_a_real_fit_and_other_policies() -> None:
    assert bias("hybrid", {}, seed=1, fit=FromThePast, baseline="least_variance") < EXACT
    assert bias("sentence", {}, size=1, seed=2, baseline="least_variance") < EXACT


@pytest.mark.parametrize(
    "name", ["hybrid_retrospective", "newline_entropy_retrospective", "adaptive_retrospective"]
)
def test_a_finished_trace_cut_by_its_scores_biases_the_gradient(name: str) -> None:
    assert bias(name, {"max_segments": 2}, baseline="least_variance") > BIASED


class BeforeSo:
    """A boundary in front of the keyword: it depends on whether the model is going to say it."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        ids = torch.full(rollouts.response_mask.shape, -1)
        for row, spans in enumerate(rollouts.token_offsets or []):
            columns = rollouts.response_mask[row].nonzero()[:, 0]
            cut = [rollouts.texts[row][start:end] == " So" for start, end in spans]
            ids[row, columns] = torch.tensor(cut).long().cumsum(0)
            ids[row, columns] -= ids[row, columns[0]].clone()
        return rr.Segments(ids, ids.amax(1) + 1)


def test_a_boundary_in_front_of_a_keyword_biases_the_gradient_and_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ``bias`` and the check are good for."""
    assert bias(f"{__name__}:BeforeSo", {}, baseline="least_variance") > BIASED
    policy = TextPolicy.random()
    rollouts = policy.rollouts(list(range(len(TRACES))), [0] * len(TRACES))
    with pytest.raises(
        AssertionError, match=r"a boundary depends on what comes after it: rollout \d+: the segment of"
    ):
        rr.check_segmenter(BeforeSo(), rollouts)
    report = rr.assign_credit(
        rollouts, rr.RRedCoTConfig(segmenter=f"{__name__}:BeforeSo", calibrate="none")
    ).metrics
    assert report["rredcot/segments/inexact/mean"] == 1.0
    report = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="keyword", calibrate="none")).metrics
    assert report["rredcot/segments/inexact/mean"] == 0.0


class OfThisBatchOnly:
    """Knows the number of rows that it is to be asked for."""

    def __call__(self, rollouts: rr.Rollouts) -> rr.Segments:
        if rollouts.batch_size != len(TRACES):
            raise RuntimeError("another batch")
        return rr.get_segmenter("keyword")(rollouts)


def test_a_segmenter_that_cannot_be_checked_does_not_stop_a_run(caplog: pytest.LogCaptureFixture) -> None:
    watch = LookaheadWatch(OfThisBatchOnly())
    rollouts = TextPolicy.random().rollouts(list(range(len(TRACES))), [0] * len(TRACES))
    assert watch(rollouts) is None
    assert "could not be checked: RuntimeError('another batch')" in caplog.text


def test_a_nested_level_that_looks_ahead_is_found() -> None:
    rollouts = TextPolicy.random().rollouts(list(range(len(TRACES))), [0] * len(TRACES))
    for level in (f"{__name__}:BeforeSo", "hybrid_retrospective"):
        assert LookaheadWatch(rr.get_segmenter("nested", levels=["turn", level]))(rollouts) is not None
    assert LookaheadWatch(rr.get_segmenter("nested", levels=["turn", "hybrid"]))(rollouts) is None


def test_the_outcome_is_not_known_to_the_baseline_because_nothing_was_cut() -> None:
    """A group of one-segment traces had GRPO's mean, the own outcome included, and others had not."""
    assert bias("keyword", {"max_segments": 1}, baseline="value") < EXACT
