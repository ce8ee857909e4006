"""`rredcot explain`: every value with its source, every automatic choice with its reason, what it costs, what is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rredcot_plugin as rr
from rredcot_plugin.choices import automatic
from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.configure import compose
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.explanation.answer import Explanation
from rredcot_plugin.explanation.explain import explain_options, explain_overrides, needs_verl
from rredcot_plugin.integrations.verl.settings import resolve_settings
from rredcot_plugin.options import Options
from rredcot_plugin.presets import PRESETS
from tests.contract.test_verl_options import verl_config

RECIPES = Path(__file__).parents[2] / "recipes"
QWEN3 = RECIPES / "math" / "run_qwen3_4b_fsdp2_vllm.sh"


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["explain", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def row(found: Explanation, key: str) -> Any:
    return next(row for row in found.rows if row.key == key)


def said(found: Explanation) -> str:
    return "\n".join((*found.costs, *found.warnings, *found.notes))


# ---- options by themselves


def test_every_key_is_there_with_its_source() -> None:
    found = explain_options(["preset=lean", "lam=0.9", "segmenter_kwargs.max_segments=8"])
    assert [row.key for row in found.rows] == ["preset", *(f.name for f in dataclasses.fields(Options))]
    assert (row(found, "preset").value, row(found, "preset").source) == ("lean", "given")
    assert (row(found, "baseline").value, row(found, "baseline").source) == ("trace", "preset lean")
    assert (row(found, "lam").value, row(found, "lam").source) == (0.9, "given")
    assert row(found, "segmenter_kwargs").value == {"max_segments": 8}
    assert row(found, "mode").source == "default"


@pytest.mark.parametrize("pairs", [[], *([f"preset={name}"] for name in PRESETS), ["lam=0.9"], ["segmenter=none"]])
def test_every_choice_appears_with_the_reason_of_the_code_that_decides(pairs: list[str]) -> None:
    found = explain_options(pairs)
    config = rr.RRedCoTConfig.from_mapping(
        {key: float(value) if key == "lam" else value for key, value in (pair.split("=") for pair in pairs)}
    )
    expected = {key: (choice.value, choice.reason) for key, choice in automatic(config).items()}
    assert expected
    assert {row.key: (row.becomes, row.reason) for row in found.rows if row.reason} == expected


def test_what_a_name_means_is_its_own_docstring() -> None:
    assert row(explain_options(["segmenter=newline"]), "segmenter").says.startswith("A segment is a line.")
    assert row(explain_options([]), "baseline").says.startswith("Outcomes regressed"), "of what auto becomes"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("segmentr=newline", "Did you mean 'segmenter'"),
        ("segmenter=newlin", "Did you mean 'newline'"),
        ("preset=leen", "Did you mean 'lean'"),
        ("lam=2", "lam=2: expected a number from 0 to 1"),
        ("lam.x.y=2", "lam"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(pair: str, message: str) -> None:
    result = run(pair)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_options_by_themselves_need_neither_verl_nor_transformers() -> None:
    code = (
        "import sys; sys.modules['verl'] = sys.modules['transformers'] = None\n"
        "from rredcot_plugin.commands.app import app; app(['explain', 'preset=lean'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "at most 63 boundaries x 8 proposals = 504 per trace, in the log-prob pass"),
        (["probe_backend=batched"], "as rows of their own"),
        (["preset=lean"], "no probes"),
        (["segmenter=none"], "no probes"),
        (["value_estimator=monte_carlo"], "at most 4 continuations from every boundary"),
        (["value_estimator=critic"], "training of a critic"),
        (["value_estimator=gradient"], "a backward pass"),
        (["value_estimator=attention"], "attention scores"),
        (["baseline=token"], "sum of squared probabilities"),
    ],
)
def test_the_cost_follows_the_options(pairs: list[str], message: str) -> None:
    assert message in said(explain_options(pairs))


def test_a_fit_is_counted_only_where_there_is_one() -> None:
    assert said(explain_options([])).count("a fit of the") == 2
    assert said(explain_options(["baseline=value"])).count("a fit of the") == 1
    assert "a fit of the" not in said(explain_options(["preset=paper"]))


# ---- on verl's configuration


def test_keys_of_verl_are_told_from_ours() -> None:
    assert not needs_verl(["lam=0.9", "segmenter_kwargs.tokens=3", "+algorithm.rredcot.preset=lean"])
    assert needs_verl(["lam=0.9", "algorithm.lam=0.9"])
    assert needs_verl(["+algorithm.redcot.segmenter=newline"])
    assert needs_verl(["+rredcot@algorithm.rredcot=default"])


def test_choices_that_follow_verl_appear_too() -> None:
    overrides = ["algorithm.norm_adv_by_std_in_grpo=False", "actor_rollout_ref.model.use_fused_kernels=True"]
    found = explain_overrides(overrides)
    expected = resolve_settings(verl_config(*overrides)).choices
    assert {row.key: (row.becomes, row.reason) for row in found.rows if row.reason} == {
        key: (choice.value, choice.reason) for key, choice in expected.items()
    }
    assert row(found, "scale").value is None and row(found, "scale").becomes == "none"
    assert "use_fused_kernels" in row(found, "probe_backend").reason
    critic = explain_overrides(["algorithm.adv_estimator=rredcot_ppo"])
    assert row(critic, "critic.enable").becomes is True
    assert row(critic, "scale").source == "algorithm.adv_estimator=rredcot_ppo"
    model = explain_overrides(
        ["algorithm.adv_estimator=red", "reward.reward_model.enable=True", "reward.reward_model.model_path=/m"]
    )
    assert row(model, "value_kwargs.path").becomes == "/m"


def test_warnings_and_notes_of_a_run_are_told() -> None:
    text = said(
        explain_overrides(["actor_rollout_ref.rollout.n=1", "segmenter=turn", "algorithm.use_kl_in_reward=True"])
    )
    for message in ("rollout.n=1", "fewer than 3 segments", "the penalty is not redistributed"):
        assert message in text


def test_an_estimator_that_is_not_ours_is_told() -> None:
    found = explain_overrides(["algorithm.adv_estimator=grpo", "preset=lean"])
    assert not found.rows
    assert "does not use it" in said(found) and "nothing reads the keys" in said(found)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+algorithm.redcot.segmenter=newline", "nothing reads this key"),
        ("algorithm.adv_estimator=rredcott", "Did you mean rredcot?"),
        ("algorithm.adv_estimator=grpoo", "grpoo"),
        ("data.train_batchsize=3", "nearest key: data.train_batch_size"),
        (
            "algorithm.redcot.segmenter=newline",
            "'algorithm.redcot.segmenter'. (nearest key: +algorithm.rredcot.segmenter)",
        ),
    ],
)
def test_a_mistake_in_a_scripts_overrides_is_found(override: str, message: str) -> None:
    result = run(str(QWEN3), "-O", override)
    assert result.exit_code == 1
    assert message in result.output


def test_a_mistake_beside_overrides_of_verl_is_the_same_as_alone() -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'segmentor' in .* Did you mean 'segmenter'"):
        explain_overrides(["+algorithm.rredcot.segmentor=newline", "actor_rollout_ref.rollout.n=8"])
    with pytest.raises(RecipeError, match=r"nearest key: \+algorithm.rredcot.segmenter\)"):
        explain_overrides(["segmentor=newline", "actor_rollout_ref.rollout.n=8"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.v1=null", "trainer.v1=null: expected a section of keys"),
        ("actor_rollout_ref.rollout.multi_turn=5", "multi_turn=5: expected a section of keys"),
        ("critic=null", "critic=null: Config group override must be"),
    ],
)
def test_a_section_without_keys_is_named(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        explain_overrides([override])


@pytest.mark.parametrize("key", ["preset", "value_kwargs.max_proposals"])
def test_a_missing_plus_is_told(key: str) -> None:
    with pytest.raises(RecipeError, match=r"only the \+ is missing"):
        compose(Launch((f"algorithm.rredcot.{key}=4",), {}, Path.cwd()))


# ---- scripts


def test_a_recipe_is_explained_with_its_own_configuration() -> None:
    result = run(str(QWEN3))
    assert result.exit_code == 0, result.output
    assert "{'max_segments': 64, 'max_response_tokens': 25000}" in result.output
    assert "of those of Qwen/Qwen3-4B's log-prob pass" in result.output
    assert "baseline=auto -> least_variance: with lam=1" in result.output


def test_a_preset_goes_with_a_recipe_that_gives_options_of_the_default() -> None:
    result = run(str(QWEN3), "-O", "+algorithm.rredcot.preset=lean")
    assert result.exit_code == 0, result.output
    assert "given; preset lean leaves out max_proposals" in result.output


def test_json_has_a_sentence_on_every_key() -> None:
    result = run(str(QWEN3), "-O", "+algorithm.rredcot.lam=0.9", "--json")
    found = json.loads(result.stdout)
    assert found["adv_estimator"] == "rredcot"
    assert found["options"]["lam"] == {"value": 0.9, "source": "given", "becomes": None, "reason": "",
                                       "says": found["options"]["lam"]["says"]}  # fmt: skip
    assert all(option["says"] for option in found["options"].values())
    assert found["options"]["baseline"]["becomes"] == "value"


def test_sizes_that_nobody_knows_are_said_to_be_unknown() -> None:
    found = explain_overrides(["actor_rollout_ref.model.path=nobody/nothing"])
    assert "unknown without the model's size (actor_rollout_ref.model.path=nobody/nothing" in said(found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.sh"], "nowhere.sh: no such file (looked in "),
        (["recipes/nowhere"], "recipes/nowhere: no such file (looked in "),
        (["."], ".: is a folder"),
        (["lam"], "lam: expected KEY=VALUE"),
        (["+algorithm.rredcot.value_kwargs.n"], "value_kwargs.n: expected KEY=VALUE"),
        ([str(QWEN3), str(QWEN3)], "expected one script at most"),
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", "").split())


@pytest.mark.parametrize(
    ("overrides", "proposals"),
    [
        (["actor_rollout_ref.rollout.n=4"], 3),
        (["actor_rollout_ref.rollout.n=4", "leave_one_out=false", "baseline=value"], 4),
        (["actor_rollout_ref.rollout.n=32"], 8),
        (["actor_rollout_ref.rollout.n=1"], 1),
        (["actor_rollout_ref.rollout.n=8", "value_estimator=own_ratio"], 1),
        (["actor_rollout_ref.rollout.n=8", "value_estimator=ground_truth"], 1),
        (["actor_rollout_ref.rollout.n=2", "value_estimator=reference"], 8),
    ],
)
def test_no_more_proposals_are_counted_than_a_group_can_make(overrides: list[str], proposals: int) -> None:
    assert f"x {proposals} proposals" in said(explain_overrides(overrides))


@pytest.mark.parametrize(
    ("pairs", "warning"),
    [
        (["value_estimator=own_ratio"], "looks at the outcome of the very trace it values"),
        (["segmenter=hybrid_retrospective"], "train with hybrid or another one"),
        (["shapers=[smoothing]"], "shapers=smoothing: they look at the whole trace"),
        (["preset=exact", "lam=0.95"], "lam=0.95 uses values in place of what later segments earn"),
    ],
)
def test_options_that_bias_the_gradient_are_warned_of_in_both_forms(pairs: list[str], warning: str) -> None:
    for found in (explain_options(pairs), explain_overrides(pairs)):
        assert [text for text in found.warnings if warning in text]
    assert explain_options(["preset=exact"]).warnings == ()
