"""Every option that biases the policy gradient says so, and the others do not."""

from __future__ import annotations

from typing import Any

import pytest

from rredcot_plugin.biases import biases_of
from rredcot_plugin.config import RRedCoTConfig


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lam": 0.9}, "lam=0.9 uses values"),
        ({"segmenter": "nested", "lam_coarse": 0.5}, "lam_coarse=0.5 uses values"),
        ({"lam_turn_rewards": 0.5}, "lam_turn_rewards=0.5 uses values"),
        ({"credit_weight": 0.5}, "credit_weight=0.5 subtracts the luck"),
        ({"credit_weight": "auto"}, "credit_weight=auto subtracts the luck"),
        ({"leave_one_out": False, "baseline": "value"}, "leave_one_out=False lets the outcome"),
        ({"match_grpo": True}, "match_grpo=True shifts"),
        ({"segmenter": "hybrid_retrospective"}, "train with hybrid or another one"),
        (
            {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", "hybrid_retrospective"]}},
            "segmenter=nested looks at the finished trace",
        ),
        ({"shapers": ["smoothing"]}, "shapers=smoothing"),
    ],
)
def test_what_biases_the_gradient_says_so(options: dict[str, Any], told: str) -> None:
    (said,) = biases_of(RRedCoTConfig.from_mapping(options))
    assert told in said and "biased" in said


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "exact"},
        {"preset": "lean"},
        {"segmenter": "none"},
        {"segmenter": "nested"},
        {"mode": "weighted"},
    ],
)
def test_what_does_not_is_silent(options: dict[str, Any]) -> None:
    assert list(biases_of(RRedCoTConfig.from_mapping(options))) == []
