"""recipes/code: every script against verl's own configuration, and what its credit settings do to answers in fences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rredcot_plugin.adapter.probe_plan import ProbePlan, plan_metrics, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.dry_run.batches import check_batches
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.integrations.verl.settings import read_settings, why_not_in_pass
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.values.base import NO_PROBES
from tests.unit.recipe_scripts import (
    RECIPES,
    Argv,
    Compose,
    argv_reader,
    check,
    verls_configuration,
)
from tests.unit.reference import pieces, text_rollouts
from tests.unit.test_text import BYTES

CODE = RECIPES / "code"
SCRIPTS = sorted(CODE.glob("run_*.sh"))
CODER = CODE / "run_qwen25_coder_1p5b_fsdp2_vllm.sh"
THINKER = CODE / "run_qwen3_4b_code_fsdp2_vllm.sh"


@pytest.fixture(scope="module")
def argv_of(tmp_path_factory: pytest.TempPathFactory) -> Argv:
    return argv_reader(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    with verls_configuration() as build:
        yield build


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_composes_with_verls_configuration(script: Path, argv_of: Argv, compose: Compose) -> None:
    config = compose(argv_of(script))
    check(config)
    assert config.algorithm.adv_estimator == "rredcot"
    assert config.reward.custom_reward_function.path == str(CODE / "reward.py")
    assert config.reward.num_workers > 0
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    settings = read_settings(config)
    settings.build_segmenter()
    settings.build_value_estimator()
    assert settings.proposals == "group"
    assert why_not_in_pass(config) is None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_baseline_differs_in_the_estimator_only(script: Path, argv_of: Argv, compose: Compose) -> None:
    ours, baseline = argv_of(script), argv_of(script, ADV_ESTIMATOR="grpo")
    ours = [item for item in ours if not item.startswith("+algorithm.rredcot")]
    assert [item.replace("rredcot", "grpo") for item in ours] == [
        item.replace("rredcot", "grpo") for item in baseline
    ]
    config = compose([*baseline, "trainer.project_name=last"])
    check(config)
    assert config.trainer.project_name == "last" and "rredcot" not in config.algorithm


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_these_checks_see_mistakes(script: Path, argv_of: Argv, compose: Compose) -> None:
    with pytest.raises(RecipeError, match="is not a multiple of data-parallel ranks = 7"):
        check_batches(compose([*argv_of(script), "trainer.n_gpus_per_node=7"]))


def test_other_values_need_no_other_line(argv_of: Argv, compose: Compose) -> None:
    settings = read_settings(compose(argv_of(CODER, VALUE_ESTIMATOR="monte_carlo")))
    assert type(settings.build_value_estimator()).__name__ == "MonteCarloEstimator"


def test_every_script_is_executable_and_on_the_page() -> None:
    page = (CODE / "README.md").read_text()
    for script in SCRIPTS:
        assert f"({script.name})" in page, script.name
        assert os.access(script, os.X_OK), script.name


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (CODE / "README.md").read_text()):
        assert (CODE / target).exists(), target


def test_knobs_on_the_page_are_knobs_of_a_script() -> None:
    files = [*SCRIPTS, CODE / "sandbox.sh", RECIPES / "common.sh"]
    scripts = "".join(file.read_text() for file in files)
    known = {*re.findall(r"\$\{([A-Z_0-9]+):-", scripts)}
    named = {*re.findall(r"`([A-Z][A-Z_0-9]*_[A-Z_0-9]+)(?:=[^`]*)?`", (CODE / "README.md").read_text())}
    assert named <= known, named - known


# ---- credit -----------------------------------------------------------------------------------------------------

PROGRAMS = [
    "def square(x):\n    return x * x\n",
    "def square(x):\n    result = x**2\n    return result\n",
    "def square(x):\n    return 2 * x\n",
]
THOUGHTS = "The function gets a number and gives it times itself. " * 12
TESTS = '{"tests": "assert square(2) == 4", "entry_point": null}'


def thinking(program: str) -> str:
    return f"<think>{THOUGHTS}</think>\n\nMultiply it by itself:\n\n```python\n{program}```\n\nThat is all."


def plan_for(texts: list[str], config: Any) -> tuple[ProbePlan, PromptedRollouts]:
    """The probes of a group whose last response failed; a token a character, in the tokenizer nearly a byte."""
    rollouts = text_rollouts(
        texts,
        [1.0, 1.0, 0.0],
        ground_truths=[TESTS] * 3,
        log_probs=-torch.linspace(0.01, 2.0, max(map(len, texts))).repeat(3, 1),
    )
    rows = PromptedRollouts(
        rollouts, [torch.arange(4)] * 3, ["<|im_start|>assistant\n"] * 3, [len(t) for t in texts]
    )
    segments = config.build_segmenter()(rollouts)
    encoder = ProbeEncoder(BYTES, config.bridge, config.terminator, config.max_probe_tokens)
    return plan_probes(rows, segments, config, encoder), rows


def probed_texts(plan: ProbePlan, row: int) -> set[str]:
    return {BYTES.decode(ids[skip:]) for _, ids, skip in plan.specs[row]}


def test_a_thinker_is_asked_for_another_rollouts_program(argv_of: Argv, compose: Compose) -> None:
    plan, rows = plan_for([thinking(program) for program in PROGRAMS], read_settings(compose(argv_of(THINKER))))
    behind = [f"{program.strip()}\n```" for program in PROGRAMS]
    assert [probed_texts(plan, row) for row in range(3)] == [{behind[1]}, {behind[0]}, {behind[1]}]
    _, ids, skip = plan.specs[2][0]
    assert BYTES.decode(ids[:skip]).lstrip("\n") == "</think>\n\n```python\n"
    assert plan_metrics(plan, rows.tokens)["rredcot/fallback/answer_too_long/mean"] == 0.0


def test_with_the_default_length_no_program_would_be_proposed(argv_of: Argv, compose: Compose) -> None:
    settings = read_settings(compose(argv_of(THINKER, MAX_PROBE_TOKENS="32")))
    plan, rows = plan_for([thinking(program) for program in PROGRAMS], settings)
    assert not any(plan.specs)
    assert plan_metrics(plan, rows.tokens)["rredcot/fallback/answer_too_long/mean"] == 1.0


def test_tests_are_never_put_to_the_actor(argv_of: Argv, compose: Compose) -> None:
    """No rollout has a program: nothing to propose, and not the ground truth, which is JSON with tests."""
    config = compose(argv_of(THINKER))
    texts = ["<think>" + THOUGHTS + end for end in ("", " So.", " Hm.")]
    assert not any(plan_for(texts, read_settings(config))[0].specs)
    config.algorithm.rredcot.proposals = "group_or_ground_truth"  # the default
    assert "entry_point" in str(probed_texts(plan_for(texts, read_settings(config))[0], 0))


def test_probes_are_bounded_by_the_length_of_the_trace(argv_of: Argv, compose: Compose) -> None:
    settings = read_settings(compose(argv_of(THINKER)))
    plan, rows = plan_for([thinking(program) for program in PROGRAMS], settings)
    least = settings.segmenter_kwargs["min_segment_tokens"]
    for specs, length in zip(plan.specs, rows.lengths, strict=True):
        assert 2 <= len(specs) <= length / least + 1


def test_a_coder_gets_segments_within_the_program_and_no_probes(argv_of: Argv, compose: Compose) -> None:
    settings = read_settings(compose(argv_of(CODER)))
    assert settings.build_value_estimator().proposes == NO_PROBES
    texts = [
        f"Square it. Then return.\n\n```python\n#### helper\ndef two():\n    return 2\n\n\n{program}```"
        for program in PROGRAMS
    ]
    plan, rows = plan_for(texts, settings)
    assert not any(plan.specs)
    found = pieces(rows.rollouts, settings.build_segmenter()(rows.rollouts))
    assert any(piece.lstrip().startswith("def square") for piece in found)
    assert any(piece.lstrip().startswith("def two") for piece in found)
