"""recipes/common.sh: what the scripts share is written once, and reaches verl in every one of them."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.dry_run.launch import find_launch
from rredcot_plugin.integrations.openrlhf.arguments import ESTIMATOR, STANDS_FOR, Arguments, split_arguments
from tests.unit.recipe_scripts import RECIPES, Argv, argv_reader

COMMON = RECIPES / "common.sh"
SANDBOX = RECIPES / "code/sandbox.sh"
SCRIPTS = sorted(RECIPES.glob("*/run_*.sh"))
OWN = [path for path in SCRIPTS if 'source "$HERE/../common.sh"' in path.read_text()]
OVERRIDE = re.compile(r"(?:^|[(\s])\+?((?:algorithm|data|reward|actor_rollout_ref|trainer)\.[a-z_.0-9]+)=")
KNOB = re.compile(r"^(?:export )?([A-Z_0-9]+)=\$\{\1:-", re.MULTILINE)
NOT_IN_THE_ARGUMENTS = {"PYTHON", "RREDCOT_CODE_SECONDS", "RREDCOT_SANDBOX", "RREDCOT_TRUST_CODE"}
"""The program itself, and what the sandbox reads from the environment."""

EXPECTED = {  # model, prompts per step and update, tokens of prompt, response, update and log-prob pass, rate, samples
    "math/run_qwen3_4b_fsdp2_vllm.sh": ("Qwen/Qwen3-4B", 64, 32, 1024, 25000, 26024, 26024, "1e-6", 8),
    "math/run_qwen3_4b_megatron_vllm.sh": ("Qwen/Qwen3-4B", 64, 32, 1024, 8192, 9216, 18432, "1e-6", 8),
    "math/run_qwen25_math_1p5b_fsdp2_vllm.sh": (
        "Qwen/Qwen2.5-Math-1.5B", 128, 64, 1024, 3072, 16384, 16384, "1e-6", 1,
    ),
    "math/run_r1_distill_1p5b_lora_vllm.sh": (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 32, 16, 512, 3584, 8192, 8192, "1e-5", 4,
    ),
    "code/run_qwen25_coder_1p5b_fsdp2_vllm.sh": (
        "Qwen/Qwen2.5-Coder-1.5B-Instruct", 128, 64, 1024, 2048, 12288, 12288, "1e-6", 1,
    ),
    "code/run_qwen3_4b_code_fsdp2_vllm.sh": ("Qwen/Qwen3-4B", 64, 32, 2048, 16384, 18432, 18432, "1e-6", 4),
    "agent/run_qwen3_4b_tools_fsdp2_vllm.sh": ("Qwen/Qwen3-4B", 64, 32, 1024, 16384, 17408, 17408, "1e-6", 4),
}  # fmt: skip
KEYS = (
    "actor_rollout_ref.model.path",
    "data.train_batch_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.rollout.val_kwargs.n",
)
EVERYWHERE = (
    "algorithm.norm_adv_by_std_in_grpo=True",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.temperature=1.0",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    "data.seed=42",
    "trainer.total_training_steps=300",
)


def name_of(script: Path) -> str:
    return f"{script.parent.name}/{script.name}"


@pytest.fixture(scope="module")
def argv_of(tmp_path_factory: pytest.TempPathFactory) -> Argv:
    return argv_reader(tmp_path_factory.mktemp("stubs"))


def test_the_table_knows_every_script() -> None:
    assert sorted(map(name_of, OWN)) == sorted(EXPECTED)


@pytest.mark.parametrize("script", OWN, ids=name_of)
def test_what_is_shared_is_not_repeated(script: Path) -> None:
    shared = set(OVERRIDE.findall(COMMON.read_text())) | set(OVERRIDE.findall(SANDBOX.read_text()))
    assert len(shared) > 45
    assert not shared & set(OVERRIDE.findall(script.read_text()))
    assert len(script.read_text().splitlines()) < 70


@pytest.mark.parametrize("script", OWN, ids=name_of)
def test_the_settings_of_a_script_reach_verl(script: Path, argv_of: Argv) -> None:
    argv = argv_of(script)
    given = dict(item.split("=", 1) for item in argv)
    assert tuple(given[key] for key in KEYS) == tuple(map(str, EXPECTED[name_of(script)]))
    assert set(EVERYWHERE) <= set(argv)
    assert given["reward.custom_reward_function.path"] == str(script.parent / "reward.py")
    assert given["trainer.project_name"] == f"rredcot_{script.parent.name}"


@pytest.mark.parametrize("script", OWN, ids=name_of)
def test_no_override_is_given_twice_and_those_that_follow_are_last(script: Path, argv_of: Argv) -> None:
    argv = argv_of(script, "trainer.total_epochs=3", "+a.b=[c, d]")
    assert argv[-2:] == ("trainer.total_epochs=3", "+a.b=[c, d]")
    assert max(Counter(item.split("=", 1)[0] for item in argv[:-2]).values()) == 1


@pytest.mark.parametrize("script", OWN, ids=name_of)
def test_every_knob_reaches_verl(script: Path, argv_of: Argv) -> None:
    sourced = [COMMON, *([SANDBOX] if "sandbox.sh" in script.read_text() else [])]
    knobs = {knob for path in (script, *sourced) for knob in KNOB.findall(path.read_text())}
    assert len(knobs) > 25
    values = {knob: str(9001 + i) for i, knob in enumerate(sorted(knobs - NOT_IN_THE_ARGUMENTS))}
    values["ADV_ESTIMATOR"] = "rredcot_9000"
    files = {knob: values.pop(knob) for knob in ("TRAIN_FILES", "VAL_FILES")}  # these stand in for DATA_DIR
    for given in (values, files):
        argv = " ".join(argv_of(script, **given))
        assert not {knob for knob, value in given.items() if value not in argv}


OPENRLHF = {  # model, task, responses per step and update, longest response, GPUs, segmenter, values
    "run_qwen25_math_1p5b.sh": ("Qwen/Qwen2.5-Math-1.5B", "math", 1024, 512, 3072, 2, "sentence", "support"),
    "run_qwen3_4b_math.sh": ("Qwen/Qwen3-4B", "math", 512, 256, 25000, 8, "sentence", "support"),
    "run_qwen3_4b_math_multinode.sh": ("Qwen/Qwen3-4B", "math", 1024, 512, 25000, 16, "sentence", "support"),
    "run_qwen25_coder_1p5b.sh": (
        "Qwen/Qwen2.5-Coder-1.5B-Instruct", "code", 1024, 512, 2048, 2, "code", "confidence",
    ),
    "run_qwen3_4b_code.sh": ("Qwen/Qwen3-4B", "code", 512, 256, 16384, 8, "code", "confidence"),
}  # fmt: skip


def flags_of(script: Path, scratch: Path, **variables: str) -> tuple[dict[str, str], Arguments]:
    """OpenRLHF's flags with their first values and what is ours, of a script for it."""
    launch = find_launch(script, (), scratch, variables)
    assert launch.environment["RREDCOT_TASK"] in ("math", "code")
    arguments = split_arguments(launch.overrides)
    words = [*arguments.host, "--"]
    flags = {word: after for word, after in pairwise(words) if word.startswith("--")}
    assert len(flags) == sum(word.startswith("--") for word in words) - 1, "a flag is given twice"
    return {**flags, "task": launch.environment["RREDCOT_TASK"]}, arguments


@pytest.mark.parametrize("name", OPENRLHF)
def test_the_settings_of_a_script_reach_openrlhf(name: str, tmp_path: Path) -> None:
    flags, arguments = flags_of(RECIPES / "openrlhf" / name, tmp_path)
    responses = int(flags["--rollout.batch_size"]) * int(flags["--rollout.n_samples_per_prompt"])
    gpus = int(flags["--actor.num_nodes"]) * int(flags["--actor.num_gpus_per_node"])
    settings = RRedCoTConfig.from_mapping(arguments.options)
    assert OPENRLHF[name] == (
        flags["--actor.model_name_or_path"],
        flags["task"],
        responses,
        int(flags["--train.batch_size"]),
        int(flags["--rollout.max_new_tokens"]),
        gpus,
        settings.segmenter,
        settings.value_estimator,
    )
    assert int(flags["--train.max_tokens_per_gpu"]) >= int(flags["--data.max_len"])
    assert flags["--reward.remote_url"] == str(RECIPES / "openrlhf/reward.py")


def test_the_baseline_for_openrlhf_differs_in_nothing_else(tmp_path: Path) -> None:
    script = RECIPES / "openrlhf/run_qwen3_4b_math.sh"
    ours, arguments = flags_of(script, tmp_path / "a", OUT_DIR="/out")
    theirs, stock = flags_of(script, tmp_path / "b", OUT_DIR="/out", ADV_ESTIMATOR="group_norm")
    assert (arguments.estimator, stock.estimator, stock.options) == ("rredcot", None, {})
    assert ours.pop(ESTIMATOR) == STANDS_FOR["rredcot"]
    assert theirs.pop(ESTIMATOR) == "group_norm"
    assert ours == theirs


def test_every_script_for_openrlhf_is_in_the_table() -> None:
    assert sorted(OPENRLHF) == sorted(path.name for path in SCRIPTS if path.parent.name == "openrlhf")


def test_the_table_of_the_page_has_every_script_with_its_lengths(argv_of: Argv, tmp_path: Path) -> None:
    rows = [line.split(" | ") for line in (RECIPES / "README.md").read_text().splitlines() if "](" in line[:60]]
    table = {re.findall(r"\]\((.+)\)", row[0])[0]: row[3] for row in rows if len(row) == 6}
    scripts = {name_of(path): path for path in RECIPES.glob("*/run_*") if "__pycache__" not in str(path)}
    assert sorted(table) == sorted(scripts)
    for name, lengths in table.items():
        if "tiny" in name:  # which sets them in its own environment
            prompt, response = re.findall(r"MAX_(?:PROMPT|RESPONSE)_LENGTH:-([0-9]+)", scripts[name].read_text())
        elif name.startswith("openrlhf/"):
            flags, _ = flags_of(scripts[name], tmp_path / name)
            response = flags["--rollout.max_new_tokens"]
            prompt = str(int(flags["--data.max_len"]) - int(response))
        else:
            given = dict(item.split("=", 1) for item in argv_of(scripts[name]))
            prompt, response = given["data.max_prompt_length"], given["data.max_response_length"]
        assert lengths == f"{prompt} + {response}", name


def openrlhf_reward() -> Any:
    spec = importlib.util.spec_from_file_location("openrlhf_reward", RECIPES / "openrlhf/reward.py")
    assert spec is not None and spec.loader is not None
    reward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reward)
    return reward


def test_what_closes_a_response_is_taken_off_in_one_look() -> None:
    """It runs in the process of the rollouts, and a regular expression took minutes for 20,000 line breaks."""
    reward = openrlhf_reward()
    assert reward._without_ends(" It is 4. <|im_end|>\n</s> <|im_end|>") == " It is 4."
    assert reward._without_ends("</s>") == "" == reward._without_ends(" \n")
    long = "\n" * 200_000 + "x"
    assert reward._without_ends(long) == long


def test_an_answer_copied_from_the_prompt_gets_nothing_in_openrlhf_too() -> None:
    prompt, label = "Write $\\frac{18}{24}$ in lowest terms.", {"ground_truth": "\\frac{3}{4}"}
    replies = ["\\boxed{\\frac{18}{24}}", "\\boxed{\\frac{3}{4}}"]
    scores = [
        openrlhf_reward().reward_func([prompt + reply], [prompt], [label])["scores"].item() for reply in replies
    ]
    assert scores == [0.0, 1.0]


@pytest.mark.parametrize(
    "query",
    [
        "<|user|>Say \\boxed{4}, café.<|assistant|>",
        "\\boxed{4}, café.<|assistant|>",  # cut from the left, as OpenRLHF does with a prompt that is too long
        "\ufffd.<|assistant|>",  # within a character
    ],
)
def test_the_prompt_is_no_part_of_an_openrlhf_response(query: str) -> None:
    reward = openrlhf_reward()
    prompt = "<|user|>Say \\boxed{4}, café.<|assistant|>"
    label = {"ground_truth": "4"}
    replies = ["I cannot.<|im_end|>", "It is \\boxed{4}.<|im_end|>"]
    scores = [reward.reward_func([query + reply], [prompt], [label])["scores"].item() for reply in replies]
    assert scores == [0.0, 1.0]
