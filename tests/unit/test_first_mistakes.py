"""What someone who extends the package gets wrong first: each mistake is named, with what was expected and a way out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.registry import BASELINES, SHAPERS, VALUE_ESTIMATORS, Registry
from rredcot_plugin.segmenters import CutSegmenter
from rredcot_plugin.testing import text_rollouts

TEXTS = ["7 - 4 = 3\n3 + 2 = 6\n#### 6", "7 - 4 = 3\n3 + 2 = 5\n#### 5", ""]


def rollouts(**fields: Any) -> rr.Rollouts:
    return text_rollouts(TEXTS, outcomes=[0.0, 1.0, 0.0], **fields)


def own(**members: Any) -> type:
    """A class of the user's with these members."""
    return type("Own", (), members)


def credit(registry: Registry, key: str, **members: Any) -> rr.Credit:
    """Credit of a few rollouts, with a class of the user's for ``key``."""
    registry.register("own_for_test", overwrite=True)(own(**members))
    try:
        chosen: Any = ("own_for_test",) if key == "shapers" else "own_for_test"
        config = rr.RRedCoTConfig.from_mapping({"segmenter": "newline", "scale": "none", key: chosen})
        return rr.assign_credit(rollouts(log_probs=torch.full(rollouts().rewards.shape, -0.5)), config)
    finally:
        del registry._factories["own_for_test"]


# ---- segmenters


@pytest.mark.parametrize(
    ("proposed", "got"),
    [
        (lambda n: [3, 5], "got list"),
        (lambda n: None, "got NoneType"),
        (lambda n: np.array([3.0, 5.0]), r"got float64 of shape \(2,\)"),
        (lambda n: np.arange(n) % 4 == 3, r"got bool of shape \(\d+,\); np.flatnonzero"),
        (lambda n: np.array([[3, 5]]), r"got int64 of shape \(1, 2\)"),
        (lambda n: torch.tensor([3, 5]), "got Tensor"),
    ],
)
def test_what_propose_returns(proposed: Callable[[int], object], got: str) -> None:
    segmenter = type("Own", (CutSegmenter,), {"propose": lambda _, trace: proposed(trace.length)})()
    with pytest.raises(ValueError, match=f"propose: expected an array of the token indices .*{got}"):
        rr.check_segmenter(segmenter)


@pytest.mark.parametrize("nothing", [np.array([]), np.zeros(0, dtype=np.int8)])
def test_no_boundaries_need_no_type(nothing: np.ndarray) -> None:
    segmenter = type("Own", (CutSegmenter,), {"propose": lambda _, trace: nothing})()
    assert segmenter(rollouts()).max_segments == 2  # the answer is split off


def test_a_segmenter_without_propose_or_with_misspelt_needs() -> None:
    with pytest.raises(NotImplementedError, match=r"Own has no method propose\(self, trace\)"):
        rr.check_segmenter(type("Own", (CutSegmenter,), {})())
    for needs, message in (("texts", r"such as \('texts',\)"), (("uncertanty",), "Did you mean 'uncertainty'")):
        with pytest.raises(ValueError, match=rf"Own\.needs.*{message}"):
            type("Own", (CutSegmenter,), {"needs": needs})()(rollouts())


@pytest.mark.parametrize("given", [type("Own", (CutSegmenter,), {}), "newline", None])
def test_only_an_instance_can_be_checked(given: Any) -> None:
    with pytest.raises(ValueError, match="segmenter: expected an instance, got ") as caught:
        rr.check_segmenter(given)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("ids", "num", "message"),
    [
        (torch.tensor([[0.0, 1.0]]), torch.tensor([2]), "segment_ids: expected integers, got torch.float32"),
        (torch.tensor([[0, 1]]), [2], "num_segments: expected a torch.Tensor, got list"),
        (np.array([[0, 1]]), torch.tensor([2]), "segment_ids: expected a torch.Tensor, got ndarray"),
        (torch.tensor([[0, -2]]), torch.tensor([1]), "segment_ids: expected -1 on masked tokens .* got -2"),
    ],
)
def test_segments_are_tensors_of_integers(ids: Any, num: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rr.Segments(ids, num)


# ---- value estimators, baselines and shapers

ROWS, STATES = (3,), (3, 3)
GOOD = rr.Estimate(torch.full(STATES, 0.5), torch.ones(ROWS, dtype=torch.bool))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"Own: expected Estimate\(values, known\), got NoneType"),
        (GOOD.values, r"Own: expected Estimate\(values, known\), got Tensor"),
        (rr.Estimate(np.full(STATES, 0.5), GOOD.known), "values of Own: expected a torch.Tensor, got ndarray"),
        (rr.Estimate(GOOD.values, True), "known rows of Own: expected a torch.Tensor, got bool"),
        (rr.Estimate(GOOD.values, GOOD.known.long()), "known rows of Own: expected torch.bool, got torch.int64"),
        (
            rr.Estimate(GOOD.values, GOOD.known, GOOD.known),
            r"known states of Own: expected shape \(3, 3\), got \(3,\)",
        ),
    ],
)
def test_what_an_estimator_returns(returned: Any, message: str) -> None:
    members = {"proposes": "nothing", "max_proposals": 1, "__call__": lambda *_, **__: returned}
    with pytest.raises(ValueError, match=message):
        credit(VALUE_ESTIMATORS, "value_estimator", **members)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"proposes": "groups", "max_proposals": 1},
            r"Own\.proposes='groups': Did you mean 'group'\? Allowed: group, ",
        ),
        ({"max_proposals": 1}, r"Own\.proposes=None: Allowed: group, "),
        ({"proposes": "group"}, r"Own\.max_proposals=None: expected a positive integer"),
        ({"proposes": "nothing", "reads": "critic"}, r"Own\.reads='critic': expected a tuple .*\('critic',\)"),
    ],
)
def test_what_an_estimator_says_of_itself(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        credit(VALUE_ESTIMATORS, "value_estimator", **members, __call__=lambda *_, **__: GOOD)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"__call__": lambda _, evidence: None}, "baselines of Own: expected a torch.Tensor, got NoneType"),
        ({"__call__": lambda _, evidence: 0.5}, "baselines of Own: expected a torch.Tensor, got float"),
        ({"needs": "log_probs"}, r"Own\.needs='log_probs': expected a tuple of names, such as \('log_probs',\)"),
        ({"needs": ("log_prob",)}, r"Own\.needs: unknown name 'log_prob'\. Did you mean 'log_probs'"),
        (
            {"__call__": lambda _, e: e.fit.baselines(e.state_weight(), e.outcomes.stats.others_mean)},
            r"otherwise: expected shape \(3, 3\), got \(3,\)",
        ),
    ],
)
def test_baselines(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        credit(BASELINES, "baseline", **{"__call__": lambda _, evidence: evidence.values, **members})


@pytest.mark.parametrize(("returned", "got"), [(None, "NoneType"), (np.zeros(STATES), "ndarray")])
def test_what_a_shaper_returns(returned: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"deltas of shaper Own: expected a torch.Tensor, got {got}"):
        credit(SHAPERS, "shapers", __call__=lambda *_: returned)


# ---- names


def test_a_decorator_without_its_name() -> None:
    with pytest.raises(
        ValueError, match=r'name of a value estimator: .* write @rr\.register_value_estimator\("name"\)'
    ):
        rr.register_value_estimator(own())  # type: ignore[arg-type]
    for name in ("", "a:b", None):
        with pytest.raises(ValueError, match="name of a segmenter: expected a text without ':'"):
            rr.register_segmenter(name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="baseline 'three': expected a class or function, got 3"):
        rr.register_baseline("three")(3)  # type: ignore[arg-type]


def test_a_function_in_place_of_what_makes_one() -> None:
    registry = Registry("shaper")
    registry.register("plain")(lambda deltas, segments, outcome, stats: deltas)
    with pytest.raises(ValueError, match="takes the options alone and returns the shaper, as a class does"):
        registry.get("plain")


def test_a_path_that_is_almost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "almost_mine.py").write_text("class Halves: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, message in (
        ("almost_mine:Halfs", r"got None\. Did you mean 'Halves'\?"),
        ("almost_mine.Halves", r"One of your own is given as 'pkg\.module:Name' or {path: file\.py, name: Name}"),
        ("almost_mine.py:Halves", r"a file is given as {path: almost_mine\.py, name: Halves}"),
        (None, "segmenter: expected a name, .* got None"),
    ):
        with pytest.raises(ValueError, match=message):
            rr.get_segmenter(name)  # type: ignore[arg-type]
    sys.modules.pop("almost_mine", None)


# ---- data and options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": [[1, 2]]}, "token_ids: expected a torch.Tensor, got list; torch.as_tensor makes one"),
        ({"response_mask": np.ones((3, 26), dtype=bool)}, "response_mask: expected a torch.Tensor, got ndarray"),
        ({"rewards": np.zeros((3, 26))}, "rewards: expected a torch.Tensor, got ndarray"),
        ({"log_probs": [[0.0]]}, "log_probs: expected a torch.Tensor, got list"),
        ({"group_ids": None}, "group_ids: expected 3 entries, one per rollout, got None"),
        ({"group_ids": [[0], [0], [1]]}, r"group_ids: expected numbers, texts or tuples, got list \[0\]"),
        ({"texts": "abc"}, "texts: expected 3 entries, one per rollout, got 'abc'"),
    ],
)
def test_rollouts_of_something_else(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(rollouts(), **fields)


def test_arguments_of_something_else() -> None:
    given = rollouts()
    array = np.zeros(STATES)
    for call, message in (
        (lambda: rr.assign_credit(given, {"lam": 1.0}), r"config: expected RRedCoTConfig, .*got {'lam': 1.0}"),
        (lambda: rr.assign_credit(given, segments=(1, 2)), "segments: expected Segments.*got tuple"),
        (lambda: rr.assign_credit(given, values=array), "values: expected a torch.Tensor, got ndarray"),
        (lambda: rr.redistribute(array, array[0], array[0]), "values: expected a torch.Tensor"),
        (lambda: rr.segment_gae(array, array[0], 1.0), "deltas: expected a torch.Tensor"),
        (lambda: rr.spread_to_tokens(torch.zeros(1, 2), torch.zeros(1, 2)), "segment_ids: expected integers"),
        (lambda: rr.importance_values(array, array, array), "log_pi: expected a torch.Tensor"),
        (
            lambda: rr.importance_values(torch.zeros(1, 1, 1), torch.ones(1, 1), torch.ones(1, 1)),
            "valid: expected torch.bool",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("given", "way_out"),
    [("lean", r"\+rredcot@algorithm\.rredcot=lean"), (["lean"], "segmenter=newline"), (None, "")],
)
def test_options_that_are_no_mapping(given: Any, way_out: str) -> None:
    with pytest.raises(ValueError, match=f"expected options under their keys.*{way_out}"):
        rr.RRedCoTConfig.from_mapping(given)
