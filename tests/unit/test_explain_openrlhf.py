"""`rredcot explain` of a script that starts OpenRLHF, in an environment without it; with it: tests/openrlhf."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.explanation.answer import Explanation
from rredcot_plugin.explanation.explain import explain_script
from rredcot_plugin.integrations.openrlhf.settings import follow
from tests.unit.recipe_scripts import RECIPES

SCRIPT_OF_OPENRLHF = RECIPES / "openrlhf/run_qwen25_coder_1p5b.sh"


def row(found: Explanation, key: str) -> Any:
    return next(row for row in found.rows if row.key == key)


def test_a_script_of_openrlhf_is_explained_where_openrlhf_is_not() -> None:
    found = explain_script(SCRIPT_OF_OPENRLHF, ["--algo.rredcot.lam=0.9"])
    assert found.estimator == "rredcot"
    assert (row(found, "lam").value, row(found, "lam").source) == (0.9, "given")
    assert (row(found, "baseline").becomes, row(found, "segmenter").value) == ("value", "code")
    assert row(found, "scale").reason == "follows --algo.advantage.no_std_norm"
    assert not {"credit_workers", "histogram_every"} & {one.key for one in found.rows}
    assert "openrlhf is not installed here" in found.notes[0]


def test_a_preset_goes_with_options_of_the_estimator_that_it_replaces() -> None:
    script = SCRIPT_OF_OPENRLHF.with_name("run_qwen25_math_1p5b.sh")
    found = row(explain_script(script, ["--algo.rredcot.preset=lean"]), "value_kwargs")
    assert (found.value, found.source) == ({}, "given; preset lean leaves out max_proposals")


def test_another_estimator_of_openrlhf_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADV_ESTIMATOR", "rloo")
    found = explain_script(SCRIPT_OF_OPENRLHF, [])
    assert (found.estimator, found.rows) == ("rloo", ())
    assert "this run is OpenRLHF's own" in found.notes[0]


def test_an_unknown_key_for_openrlhf_is_told_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'lamm' in --algo.rredcot. Did you mean 'lam'\?"):
        explain_script(SCRIPT_OF_OPENRLHF, ["--algo.rredcot.lamm=0.9"])


@pytest.mark.parametrize(
    ("most", "agent", "length"),
    [(40, None, 40), (40, "agent.py", 1000), (None, None, 1000), (None, "agent.py", 1000)],
)
def test_segments_are_spread_over_what_the_executor_lets_a_response_have(
    most: int | None, agent: str | None, length: int
) -> None:
    """An agent's turns go on until the sequence is as long as it may be, whatever one sample may have."""
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(no_std_norm=False)),
        data=SimpleNamespace(max_len=1000),
        rollout=SimpleNamespace(max_new_tokens=most),
        train=SimpleNamespace(agent_func_path=agent),
    )
    assert follow(RRedCoTConfig(segmenter="newline"), args).build_segmenter().max_response_tokens == length
    own = RRedCoTConfig(segmenter="newline", segmenter_kwargs={"max_response_tokens": 77})
    assert follow(own, args).build_segmenter().max_response_tokens == 77
