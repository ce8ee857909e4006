"""`rredcot plan`: operations and bytes on cases small enough for a pencil, what grows with what, the benchmarks, the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from rredcot_plugin.dry_run.architecture import known_architectures
from rredcot_plugin.planning import driver
from rredcot_plugin.planning.check import padded_probes
from rredcot_plugin.planning.flops import Flops, batched_probes, even_boundaries, forked_probes, trace_pass
from rredcot_plugin.planning.memory import cache_a_token, phases, probe_bytes, update_a_token
from rredcot_plugin.planning.models import ModelSizes, find_sizes, sizes_of
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.step import alternatives, plan_step
from rredcot_plugin.planning.transfers import probe_vector, read_row, sampled_row, transfers
from rredcot_plugin.probes.layout import pack
from tests.unit.planned_bytes import total

TINY = ModelSizes("tiny", 2, 8, 8, 4, 16, 100, 2600, 1000)


SMALL = Setup(
    gpus=2, tflops=1e-6, gpu_gb=1.0, prompts=3, rollouts=2, prompt_length=2, response_length=8, segments=4, proposals=3,
    probe_tokens=2, samples=5, mfu=0.5, decode_rate=4.0, transfer_gb=1e-6, recompute=False,
)  # fmt: skip


def test_the_pass_of_a_trace_by_hand() -> None:
    # 10 tokens: 2 * 1000 * 10; 4 * 2 layers * 8 * (10 * 11 / 2) keys; 2 * 100 * 8 * 10
    assert trace_pass(TINY, 10) == Flops(20_000, 3_520, 16_000)
    assert trace_pass(TINY, 10).total == 39_520


def test_probes_by_hand() -> None:
    # 3 probes of 2 tokens behind 4 and behind 8 tokens are 12 tokens; the first of a probe sees its prefix and itself, the
    # second one more: 3 * (5 + 6) + 3 * (9 + 10) = 90 keys
    assert forked_probes(TINY, [4, 8], 3, 2) == Flops(2 * 1000 * 12, 64 * 90, 2 * 800 * 12)
    # rows of their own: 3 * the passes of 6 and of 10 tokens
    assert batched_probes(TINY, [4, 8], 3, 2) == Flops(3 * 2000 * 16, 3 * 64 * (21 + 55), 3 * 1600 * 16)
    # padded to the longest, 10 tokens each: 100 keys a row; logits of columns 4, 5, 8, 9 for both
    assert padded_probes(TINY, [6, 10], 2) == Flops(2000 * 20, 64 * 200, 1600 * 8)
    assert even_boundaries(2, 8, 4) == [4.0, 6.0, 8.0]


def test_a_forked_probe_is_what_its_tokens_cost_more_in_the_pass() -> None:
    """One probe at the end is the same as a longer trace, but for logits that both have."""
    longer = trace_pass(TINY, 25).total - trace_pass(TINY, 20).total
    assert forked_probes(TINY, [20], 1, 5).total == longer


def test_the_first_two_terms_are_two_operations_a_parameter() -> None:
    sizes = find_sizes("Qwen/Qwen3-4B", known_architectures())
    found = trace_pass(sizes, 1)
    assert found.layers + found.head == pytest.approx(2 * sizes.parameters, rel=1e-3)


def test_sizes_of_known_models() -> None:
    sizes = find_sizes("Qwen/Qwen3-4B", known_architectures())
    assert (sizes.layers, sizes.hidden, sizes.attention, sizes.kv) == (36, 2560, 4096, 1024)
    assert sizes.parameters == 4_022_468_096
    assert sizes.layer_parameters == sizes.parameters - sizes.vocabulary * sizes.hidden  # tied: counted once
    untied = find_sizes("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", known_architectures())
    assert untied.layer_parameters == untied.parameters - 2 * untied.vocabulary * untied.hidden


def test_of_experts_only_the_active_ones_count() -> None:
    config = AutoConfig.for_model(
        "qwen3_moe", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=4, vocab_size=10, tie_word_embeddings=False,
    )  # fmt: skip
    sizes = sizes_of(config, "moe")
    experts = 8 * 3 * 8 * 4
    assert sizes.parameters - sizes.layer_parameters == 2 * 80 + experts * 6 // 8
    assert sizes.feed_forward == 8


LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "active", "cached"),
    [
        (LITE, 15.71, 2.24, 27 * (512 + 64) * 2),
        ({"model_type": "deepseek_v3"}, 671.03, 35.70, 61 * (512 + 64) * 2),
        ({"model_type": "granitemoe"}, 37.04, 10.81, 32 * 4096 * 4),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_experts_are_found_and_latent_attention_caches_little(
    config: dict[str, Any], billions: float, active: float, cached: int
) -> None:
    sizes = sizes_of(AutoConfig.for_model(**config), "large")
    assert (round(sizes.parameters / 1e9, 2), round(sizes.layer_parameters / 1e9, 2)) == (billions, active)
    assert cache_a_token(sizes) == cached
    assert cache_a_token(sizes, 4) == (cached if sizes.latent else cached // 4), "a latent is on every GPU"
    kept = probe_bytes(sizes, SMALL) - probe_bytes(sizes, dataclasses.replace(SMALL, backend="packed"))
    assert kept == 10 * 4 * sizes.layers * sizes.kv, "probes read keys and values in full"


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok, .*deepseek_v2.* beside 64 experts, got none"),
        ({"model_type": "llama", "num_experts_per_tok": 2}, "n_routed_experts, .* beside 2 experts, got none"),
    ],
)
def test_experts_of_which_half_is_unknown_are_refused(config: dict[str, Any], parts: str) -> None:
    with pytest.raises(ValueError, match=f"^model=odd: .*{parts}.* config.json"):
        find_sizes("odd", {"odd": config})


def test_a_model_is_found_in_its_folder(tmp_path: Path) -> None:
    AutoConfig.for_model("llama", hidden_size=16, num_attention_heads=2, num_hidden_layers=1).save_pretrained(
        tmp_path
    )
    assert find_sizes(str(tmp_path), {}).attention == 16
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=f"^model={tmp_path}: "):
        find_sizes(str(tmp_path), {})


def test_the_phases_of_a_step_by_hand() -> None:
    # 6 traces of 2 + 8 tokens; 2 GPUs of 10^6 * 0.5 operations a second; 8 generated tokens a second together
    step = plan_step(TINY, SMALL)
    assert step.phase("generation").seconds == 6 * 8 / 8
    assert step.phase("log-prob pass").seconds == 6 * 39_520 / 1e6
    assert step.phase("update").seconds == 3 * 6 * 39_520 / 1e6
    probes = forked_probes(TINY, [4, 6, 8], 3, 2)
    assert step.phase("probes").seconds == pytest.approx(6 * probes.total / 1e6)
    assert step.phase("probes").tokens == 6 * 9 * 2
    assert step.seconds == pytest.approx(sum(phase.seconds for phase in step.phases))
    again = plan_step(TINY, dataclasses.replace(SMALL, recompute=True))
    assert again.phase("update").seconds == pytest.approx(4 * 6 * 39_520 / 1e6)


def test_monte_carlo_generates_what_each_trace_had_left() -> None:
    step = plan_step(TINY, dataclasses.replace(SMALL, estimator="monte_carlo"))
    # states at 2, 4 and 6 of 8 response tokens have 6, 4 and 2 left; 5 samples each
    assert step.phase("continuations").tokens == 6 * 5 * (6 + 4 + 2)
    assert step.phase("probes").seconds == 0


def test_grpo_has_nothing_of_ours() -> None:
    step = plan_step(TINY, dataclasses.replace(SMALL, estimator="none"))
    assert step.share == 0
    assert step.driver_share == 0
    names = [s.estimator for s in alternatives(TINY, SMALL)]
    assert names == ["none", "support", "monte_carlo"]
    assert len(alternatives(TINY, dataclasses.replace(SMALL, estimator="monte_carlo"))) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": 6}, {"rollouts": 4}, {"response_length": 16}, {"prompt_length": 4}, {"segments": 8},
        {"proposals": 6}, {"probe_tokens": 4}, {"backend": "batched"}, {"estimator": "monte_carlo"}, {"mfu": 0.25},
        {"tflops": 0.5e-6}, {"gpus": 1}, {"transfer_gb": 0.5e-6},
    ],
    ids=str,
)  # fmt: skip
def test_more_work_or_less_machine_takes_longer(change: dict[str, Any]) -> None:
    def ours(setup: Setup) -> float:
        step = plan_step(TINY, setup)
        return step.seconds * step.share

    changed = dataclasses.replace(SMALL, **change)
    assert plan_step(TINY, changed).seconds > plan_step(TINY, SMALL).seconds
    if change.keys() & {"prompts", "rollouts", "segments", "proposals", "probe_tokens", "backend", "estimator"}:
        assert ours(changed) > ours(SMALL)


def test_the_driver_does_not_care_for_gpus_and_is_linear_in_the_batch() -> None:
    more = dataclasses.replace(SMALL, gpus=200)
    twice = dataclasses.replace(SMALL, prompts=6)
    for seconds, a_step in (
        (driver.credit_seconds, driver.CREDIT_A_STEP),
        (driver.planning_seconds, driver.PLAN_A_STEP),
    ):
        assert seconds(more) == seconds(SMALL)
        assert seconds(twice) - a_step == pytest.approx(2 * (seconds(SMALL) - a_step))
    assert driver.driver_memory(twice).total == pytest.approx(2 * driver.driver_memory(SMALL).total)


def test_beyond_a_million_tokens_the_driver_shares_its_work() -> None:
    big = dataclasses.replace(SMALL, prompts=1000, response_length=4096, credit_workers=4)
    alone = dataclasses.replace(big, credit_workers=0)

    def of_driver(setup: Setup) -> float:
        return driver.planning_seconds(setup) + driver.credit_seconds(setup)

    def others(setup: Setup) -> float:
        return driver.others_seconds(setup, transfers(setup))

    assert others(alone) == 0
    assert of_driver(big) < of_driver(alone) / 2
    twice = dataclasses.replace(big, credit_workers=8)
    assert others(big) == pytest.approx(2 * others(twice))
    assert of_driver(big) + 4 * others(big) > of_driver(alone), "sharing makes no work vanish"
    few = dataclasses.replace(big, prompts=1, rollouts=2000)
    by_itself = dataclasses.replace(few, credit_workers=0)
    moved = driver.transfer_seconds(by_itself, transfers(by_itself), ours=True)
    assert others(few) == pytest.approx(of_driver(by_itself) + moved, rel=0.1), "one group is one process's"
    assert others(dataclasses.replace(SMALL, credit_workers=4)) == 0, "small steps are not shared"


def test_bytes_of_a_row_by_hand() -> None:
    # 2 + 8 tokens: prompts 16, responses and two masks 3 * 64, ids and positions 2 * 80, log-probs and reward 2 * 32
    assert sampled_row(2, 8) == 16 + 3 * 64 + 2 * 80 + 2 * 32
    assert read_row(2, 8) == 16 + 2 * 64 + 2 * 32
    specs = [(5, [7, 8], 1), (9, [3, 4], 0)]
    assert pack(specs).nbytes == probe_vector(2, 2)


def test_bytes_of_a_step_by_hand() -> None:
    probes = 3 * 3  # boundaries times proposals
    there, back = 8 * (1 + probes * 5), 4 * (1 + probes)
    assert total(SMALL, what="probes", way="written by") == 6 * there
    assert total(SMALL, what="answers of probes", who="driver") == 6 * back
    assert total(SMALL, ours=True, who="driver") == 6 * (read_row(2, 8) + 8 * 8 + there + back)
    assert total(dataclasses.replace(SMALL, estimator="none"), ours=True) == 0
    # rows of their own: prefixes of 4, 6 and 8 tokens and 2 of the probe, three times each
    rows = dataclasses.replace(SMALL, backend="batched")
    tokens = 3 * (6 + 8 + 10)
    assert total(rows, what="probes as rows", who="driver") == 6 * 8 * (3 * tokens + 2 * probes * 2)
    assert total(rows, what="their log-probs", who="driver") == 6 * 4 * tokens


def test_with_processes_beside_it_the_driver_reads_answers_only() -> None:
    big = dataclasses.replace(SMALL, prompts=1000, response_length=4096, credit_workers=4)
    alone, rows = (dataclasses.replace(big, **other) for other in ({"credit_workers": 0}, {"backend": "batched"}))
    answers = total(big, what="answers of probes", who="driver")
    assert answers and total(big, ours=True, who="driver") == answers
    assert total(big, ours=True, who="processes") + answers == total(alone, ours=True, who="driver")
    tokens = total(alone, what="rows: ids, masks, rewards")
    assert total(rows, what="rows: ids, masks, rewards") == 2 * tokens, "rows of their own are made by the driver"


def test_every_transfer_grows_with_the_batch_and_not_with_gpus() -> None:
    for estimator in ("support", "monte_carlo", "none"):
        before = dataclasses.replace(SMALL, estimator=estimator)
        twice, wide = dataclasses.replace(before, prompts=6), dataclasses.replace(before, gpus=64)
        for one, two, same in zip(transfers(before), transfers(twice), transfers(wide), strict=True):
            assert two.bytes == pytest.approx(2 * one.bytes)
            assert same == one


def test_memory_by_hand() -> None:
    assert cache_a_token(TINY) == 4 * 2 * 4
    assert update_a_token(TINY) == 2 * 2 * 8 + 10 * 100 + 16 * 8 + 8 * 16
    # keys and values of 10 tokens; logits and a layer of 9 * 2 probe tokens
    assert probe_bytes(TINY, SMALL) == 10 * 32 + 18 * (200 + 256)
    assert probe_bytes(TINY, dataclasses.replace(SMALL, backend="packed")) == 18 * 456
    assert probe_bytes(TINY, dataclasses.replace(SMALL, backend="batched")) == 0
    by_name = {phase.name: phase for phase in phases(TINY, SMALL)}
    assert by_name["training state"].bytes == 16 * 2600 / 2
    assert by_name["update"].bytes == 20_800 + 10 * update_a_token(TINY)
