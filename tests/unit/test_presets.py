"""Presets, old names, and what is chosen automatically."""

from __future__ import annotations

import dataclasses

import pytest

import rredcot_plugin as rr
from rredcot_plugin import choices, renamed
from rredcot_plugin.choices import automatic
from rredcot_plugin.commands.score import read_options
from rredcot_plugin.options import ESTIMATOR_DEFAULTS, Options
from rredcot_plugin.presets import PRESETS, known_keys, resolve_keys
from rredcot_plugin.values.base import proposal_limits


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed, "_warned", set())


# ---- presets


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_keys_on_the_defaults(name: str) -> None:
    assert rr.RRedCoTConfig.from_mapping({"preset": name}) == rr.RRedCoTConfig(**PRESETS[name].keys)


def test_presets_are_what_they_promise() -> None:
    exact, lean, low, paper = (rr.RRedCoTConfig.from_mapping({"preset": name}) for name in PRESETS)
    assert (exact.scale, exact.lam, exact.leave_one_out) == ("none", 1.0, True)
    assert not proposal_limits(lean.build_value_estimator()), "no probes"
    assert lean.baseline == "trace"
    assert (low.scale, low.credit_weight, low.build_baseline(log_probs=True).floor) == ("none", 0.5, 0.0001)
    assert (paper.mode, paper.calibrate) == ("weighted", "none")


def test_explicit_keys_win_even_where_they_are_the_default() -> None:
    config = rr.RRedCoTConfig.from_mapping({"preset": "lean", "baseline": "auto", "lam": 0.9})
    assert (config.baseline, config.value_estimator, config.lam) == ("auto", "confidence", 0.9)


def test_a_presets_options_of_a_baseline_go_with_it() -> None:
    keys, sources = resolve_keys({"preset": "low_variance", "baseline": "value"})
    assert "baseline_kwargs" not in keys and "baseline_kwargs" not in sources
    assert keys["credit_weight"] == 0.5
    same, _ = resolve_keys({"preset": "low_variance", "baseline": "trace"})
    assert same["baseline_kwargs"] == PRESETS["low_variance"].keys["baseline_kwargs"]
    assert rr.RRedCoTConfig.from_mapping({"preset": "low_variance", "baseline": "auto"}).baseline == "auto"


def test_given_options_of_an_estimator_go_where_a_preset_replaces_it() -> None:
    given = {"preset": "lean", "value_kwargs": {"max_proposals": 4}}
    keys, sources = resolve_keys(given)
    assert keys["value_kwargs"] == {}
    assert sources["value_kwargs"] == "given; preset lean leaves out max_proposals"
    assert rr.RRedCoTConfig.from_mapping(given) == rr.RRedCoTConfig.from_mapping({"preset": "lean"})
    own, _ = resolve_keys({**given, "value_estimator": "support"})
    kept, sources = resolve_keys({**given, "preset": "paper"})
    assert own["value_kwargs"] == kept["value_kwargs"] == {"max_proposals": 4}
    assert sources["value_kwargs"] == "given"
    of_base, _ = resolve_keys(
        {"preset": "lean", "value_kwargs": {"path": "m"}}, {"value_estimator": "reward_model"}
    )
    assert of_base["value_kwargs"] == {}
    with pytest.raises(ValueError, match="'confidence': unknown option 'max_proposls'"):
        rr.RRedCoTConfig.from_mapping({"preset": "lean", "value_kwargs": {"max_proposals": 4, "max_proposls": 4}})


def test_given_options_join_those_of_the_same_thing() -> None:
    """As they do in the Hydra group of the same name."""
    given = {"preset": "low_variance", "baseline_kwargs": {"floor": 0.1}}
    keys, sources = resolve_keys(given)
    assert keys["baseline_kwargs"] == {"floor": 0.1, "pseudo_rollouts": 32}
    assert sources["baseline_kwargs"] == "given, the rest preset low_variance"
    other, sources = resolve_keys({**given, "baseline": "least_variance"})
    assert other["baseline_kwargs"] == {"floor": 0.1} and sources["baseline_kwargs"] == "given"
    red = ESTIMATOR_DEFAULTS["red"]
    few, _ = resolve_keys({"segmenter_kwargs": {"max_segments": 9}}, red)
    assert few["segmenter_kwargs"] == {"tokens": 1, "max_segments": 9, "answer_markers": []}


def test_options_of_a_segmenter_that_is_replaced_are_left_out() -> None:
    keys, sources = resolve_keys({"segmenter": "newline"}, ESTIMATOR_DEFAULTS["red"], "red")
    assert keys == {"value_estimator": "reward_model", "segmenter": "newline"}
    assert sources == {"value_estimator": "red", "segmenter": "given"}
    of_preset, _ = resolve_keys({"preset": "exact"}, ESTIMATOR_DEFAULTS["red"])
    assert of_preset["segmenter"] == "sentence" and "segmenter_kwargs" not in of_preset


def test_a_preset_wins_over_the_defaults_of_an_estimators_name() -> None:
    keys, sources = resolve_keys(
        {"preset": "exact", "clip": 1.0}, {"scale": "whiten", "bridge": "x"}, "of the name"
    )
    assert keys["scale"] == "none" and sources["scale"] == "preset exact"
    assert keys["bridge"] == "x" and sources["bridge"] == "of the name"
    assert sources["clip"] == "given"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"preset": "leen"},
            r"preset='leen': unknown\. Did you mean 'lean'\? Known: exact, lean, low_variance, paper",
        ),
        ({"preset": ["lean"]}, r"preset=\['lean'\]: unknown"),
        ({"presets": "lean"}, "Did you mean 'preset'"),
        (
            {"preset": "lean", "value_kwargs": {"max_proposls": 4}},
            "unknown option 'max_proposls'.*preset lean sets value_estimator=confidence: leave value_kwargs out, or give value_estimator",
        ),
        (
            {"preset": "lean", "value_kwargs": {"n": 4}, "value_estimator": "support"},
            "'support': unknown option 'n'",
        ),
    ],
)
def test_what_is_wrong_with_a_preset_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.RRedCoTConfig.from_mapping(options)


def test_a_preset_on_the_command_line_of_score() -> None:
    found = read_options(None, ["preset=lean", "lam=0.9"])
    assert (found.value_estimator, found.lam) == ("confidence", 0.9)


def test_a_preset_on_top_of_the_group_with_every_key_is_refused() -> None:
    every = dataclasses.asdict(rr.RRedCoTConfig())
    with pytest.raises(ValueError, match=r"would change nothing.*\+rredcot@algorithm\.rredcot=lean instead"):
        rr.RRedCoTConfig.from_mapping({**every, "preset": "lean"})


# ---- old names


def test_an_old_key_is_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert rr.RRedCoTConfig.from_mapping({"log_every": 3}).histogram_every == 3
    assert len(caplog.records) == 1
    assert "algorithm.rredcot.log_every is now called algorithm.rredcot.histogram_every" in caplog.text
    with pytest.raises(ValueError, match="old name of histogram_every, and both are given"):
        rr.RRedCoTConfig.from_mapping({"log_every": 3, "histogram_every": 3})


def test_old_names_lead_to_names_that_exist_and_hide_none() -> None:
    assert set(renamed.KEYS.values()) <= set(known_keys())
    assert not set(renamed.KEYS) & set(known_keys())


def test_an_old_metric_is_found_under_its_new_name(caplog: pytest.LogCaptureFixture) -> None:
    assert renamed.new_metric("rredcot/plan/processes/mean") == "rredcot/driver/workers/mean"
    assert "is now called" in caplog.text


# ---- choices


@pytest.mark.parametrize(
    ("options", "value", "reason"),
    [
        ({}, "least_variance", "lam=1 and calibrated values"),
        ({"lam": 0.9}, "value", "only with lam=1"),
        ({"calibrate": "none", "match_grpo": True}, "value", "calibrate=outcome or trees, match_grpo=false"),
        ({"value_estimator": "critic"}, "value", "a value estimator that calibrate applies to"),
        ({"mode": "weighted"}, "value", "mode=segment_gae"),
        ({"segmenter": "none"}, "value", "verl's own GRPO"),
        ({"segmenter": "none", "baseline": "trace"}, "value", "verl's own GRPO"),
    ],
)
def test_the_baseline_says_why(options: dict, value: str, reason: str) -> None:
    choice = automatic(rr.RRedCoTConfig(**options))["baseline"]
    assert choice.value == value
    assert reason in choice.reason


def test_what_was_named_is_no_choice() -> None:
    named = rr.RRedCoTConfig(baseline="value", scale="none", probe_backend="batched", bridge="x", terminator="y")
    assert set(automatic(named)) == {"calibrate_window", "credit_workers"}
    assert "baseline" not in automatic(rr.RRedCoTConfig(segmenter="none", baseline="token"))


def test_what_is_not_used_says_so() -> None:
    lean = automatic(rr.RRedCoTConfig.from_mapping({"preset": "lean"}))
    assert {key for key, choice in lean.items() if "nothing is probed" in choice.reason} == {
        "probe_backend", "bridge", "terminator",
    }  # fmt: skip
    assert "nothing is fitted" in automatic(rr.RRedCoTConfig(calibrate="none"))["calibrate_window"].reason
    read = rr.RRedCoTConfig(value_estimator="reward_model")
    assert "nothing is calibrated" in automatic(read)["calibrate_window"].reason
    fitted = rr.RRedCoTConfig(calibrate="none", baseline="least_variance")
    assert "512 rollouts" in automatic(fitted)["calibrate_window"].reason, "the baseline has a fit of its own"


def test_every_key_that_may_be_auto_has_a_choice_where_it_is() -> None:
    """A new key with ``auto`` must say what it becomes, or `rredcot explain` would be silent about it."""
    open_keys = {f.name for f in dataclasses.fields(Options) if f.default == "auto"}
    assert open_keys <= set(automatic(rr.RRedCoTConfig()))
    assert "scale" in automatic(rr.RRedCoTConfig())


def test_backend_scale_and_workers_follow_the_host() -> None:
    found = automatic(
        rr.RRedCoTConfig(), by_std=False, why_not_in_pass="a reason", tokens=choices.AUTO_TOKENS + 1, cores=12
    )
    assert found["scale"].value == "none" and "which is false" in found["scale"].reason
    assert found["probe_backend"].value == "batched" and "a reason" in found["probe_backend"].reason
    assert found["credit_workers"].value == 6 and "(12 here)" in found["credit_workers"].reason
    assert (
        automatic(rr.RRedCoTConfig(probe_backend="packed"), why_not_in_pass="a reason")["probe_backend"].value
        == "batched"
    )


def test_the_constructor_refuses_a_preset_and_names_what_takes_one() -> None:
    with pytest.raises(ValueError, match=r"preset='lean': the constructor takes no preset.*from_mapping"):
        rr.RRedCoTConfig(preset="lean")
    # copies and keys know nothing of it
    assert dataclasses.replace(rr.RRedCoTConfig(), lam=0.5) == rr.RRedCoTConfig(lam=0.5)
    assert "preset" not in {f.name for f in dataclasses.fields(rr.RRedCoTConfig)}
