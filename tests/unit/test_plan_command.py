"""`rredcot plan`: its predictions beside committed results, its tables, and wrong options."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoConfig
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.architecture import known_architectures
from rredcot_plugin.planning import driver
from rredcot_plugin.planning.check import predicted_ratio
from rredcot_plugin.planning.gpus import GPUS, find_gpu
from rredcot_plugin.planning.models import ModelSizes, find_sizes, sizes_of
from rredcot_plugin.planning.result import make_plan
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.tables import in_units, show
from tests.unit.planned_bytes import total

ROOT = Path(__file__).parents[2]


RESULTS = ROOT / "benchmarks" / "results"


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


@pytest.fixture(scope="module")
def measured_model() -> ModelSizes:
    """The model of benchmarks/probe_overhead.py."""
    config = AutoConfig.for_model(
        "qwen3", vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=False,
    )  # fmt: skip
    return sizes_of(config, "benchmark")


@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
def test_the_committed_overhead_is_predicted_within_a_fifth(measured_model: ModelSizes, backend: str) -> None:
    overhead = record("probe_overhead")
    settings = overhead["settings"]
    assert measured_model.parameters == settings["model_parameters"]
    T, K = settings["tokens"], settings["probes"]
    even = [int(T * (i + 0.5) / K) for i in range(K)]  # the benchmark's are random, uniform
    found = predicted_ratio(measured_model, backend, T, even, settings["probe_tokens"])
    for clock in ("", "_cpu"):
        assert found == pytest.approx(overhead["summary"][f"{backend}{clock}_over_plain"]["value"], rel=0.2)


def test_the_drivers_numbers_are_the_benchmarks() -> None:
    credit = record("assign_credit_hybrid")
    settings = credit["settings"]
    seconds = credit["summary"]["with_past_seconds"]["value"]
    assert pytest.approx(seconds / (settings["traces"] * settings["tokens"]), rel=0.1) == driver.CREDIT_A_TOKEN
    row = credit["raw"][0]
    tokens = row["traces"] * row["tokens"]
    assert (row["tensor_bytes"] + row["text_and_offset_bytes"]) / tokens == pytest.approx(
        driver.ROW_BYTES, rel=0.03
    )
    assert row["extra_bytes"] / tokens == pytest.approx(driver.CREDIT_BYTES, rel=0.03)
    step = record("step_share")["raw"]
    assert median(step["timing_s/rredcot_credit"]) == pytest.approx(driver.CREDIT_A_STEP, rel=0.03)
    assert median(step["timing_s/rredcot_plan"]) == pytest.approx(driver.PLAN_A_STEP, rel=0.03)
    check = record("plan_check")
    summary = check["summary"]
    assert summary["align_seconds_per_token"]["value"] == pytest.approx(driver.ALIGN_A_TOKEN, rel=0.4)
    for measured in check["raw"]["driver"]:
        tokens = measured["tokens"] // measured["traces"]
        assert summary[f"plan_seconds_per_probe_at_{tokens}_tokens"]["value"] == pytest.approx(
            driver.PLAN_A_PROBE, rel=0.4
        )
        assert measured["plan_bytes"] / measured["probes"] == pytest.approx(driver.PROBE_BYTES, rel=0.1)
    shared = record("driver")["summary"]
    assert shared["workers_2_microseconds_per_token"]["value"] == pytest.approx(
        1e6 * driver.SHARED_A_TOKEN, rel=0.4
    )
    assert shared["workers_2_fit_seconds"]["value"] == pytest.approx(driver.FIT_A_STEP, rel=0.4)
    reading = driver.READ_BYTES / (1e9 * shared["read_gigabytes_per_second"]["value"])
    parts = driver.CREDIT_A_TOKEN + driver.ALIGN_A_TOKEN + driver.ROWS_A_TOKEN + reading
    assert 1e6 * parts == pytest.approx(shared["workers_0_microseconds_per_token"]["value"], rel=0.01)
    probe = shared["workers_2_microseconds_per_probe"]
    assert probe["low"] <= 1e6 * driver.SHARED_A_PROBE <= probe["high"]


def test_the_committed_check_is_within_its_target() -> None:
    check = record("plan_check")
    assert check["summary"]["plan_ratio_error"]["value"] <= check["settings"]["target"] == 0.2
    assert {row["backend"] for row in check["raw"]["cells"]} == {"cached", "packed", "batched"}


def test_the_page_on_growth_says_what_the_plan_prints() -> None:
    page = (ROOT / "docs" / "guides" / "scaling.md").read_text()
    rows = {
        cells[0]: cells[1:]
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    }
    sizes = find_sizes("Qwen/Qwen3-4B", known_architectures())
    for column, (gpus, prompts) in enumerate(((8, 64), (64, 512), (1024, 8192))):
        plan = make_plan(sizes, Setup(gpus=gpus, prompts=prompts))
        assert f"--gpus {gpus} --prompts {prompts} --json" in page
        assert rows["verl's own, in all"][column] == in_units(plan.bytes_of(ours=False))
        assert rows["rredcot, in all"][column] == in_units(plan.bytes_of(ours=True))
        assert f"{plan.step.driver_share:.1%}".replace("%", " %") in page


QWEN = ["plan", "--model", "Qwen/Qwen3-4B"]


def test_json_has_every_number_and_the_tables_the_same() -> None:
    run = CliRunner().invoke
    as_json = run(app, [*QWEN, "--json", "--gpus", "16", "--gpu", "h200", "--segments", "8"])
    assert as_json.exit_code == 0
    found = json.loads(as_json.output)
    setup = Setup(gpus=16, tflops=GPUS["H200"].tflops, gpu_gb=GPUS["H200"].gb, segments=8)
    plan = make_plan(find_sizes("Qwen/Qwen3-4B", known_architectures()), setup)
    assert found == json.loads(json.dumps(plan.as_dict()))
    assert found["bytes_a_step"]["rredcot"] == total(setup, ours=True)
    text = run(app, [*QWEN, "--gpus", "16", "--gpu", "h200", "--segments", "8"])
    assert text.exit_code == 0
    for part in (
        f"{plan.step.seconds:,.2f}",
        "MC-GRPO x4",
        "assumed, not measured:",
        "35% of 989",
        "driver: credit",
    ):
        assert part in text.output
    assert "…" not in text.output, "nothing is cut in a file"


@pytest.mark.parametrize(
    "setup", [Setup(), Setup(gpus=1024, prompts=8192, response_length=32000), Setup(estimator="confidence")]
)
def test_80_columns_cut_no_number_and_no_unit(setup: Setup) -> None:
    plan = make_plan(find_sizes("Qwen/Qwen3-4B", known_architectures()), setup)
    text = {}
    for width in (80, 300):
        terminal = Console(width=width, file=io.StringIO(), highlight=False)
        show(plan, terminal)
        text[width] = terminal.file.getvalue()
    numbers = re.compile(r"\d[\d.,]*(?: (?:[kMGTP]?B|M)\b|%)?")
    assert Counter(numbers.findall(text[80])) == Counter(numbers.findall(text[300]))
    assert "…" not in text[80]


def test_the_help_names_every_option_in_80_columns() -> None:
    output = (
        CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}).output
    )
    assert "--decode-tokens-per-second" in output and "…" not in output


def test_what_does_not_fit_is_said() -> None:
    run = CliRunner().invoke
    small = run(app, [*QWEN, "--gpus", "1", "--gpu-gb", "24", "--response-length", "16384"])
    assert "training state: 64.4 GB per GPU do not fit into 24" in small.output
    many = run(app, [*QWEN, "--gpus", "1024", "--prompts", "16384", "--response-length", "16384"])
    assert "total_storage_size" in many.output
    probes = run(app, [*QWEN, "--gpus", "1024", "--prompts", "128", "--backend", "batched"])
    assert "total_storage_size" not in probes.output, "probes lie there a few thousand at a time"
    assert "of the step on the driver" in " ".join(many.output.split())
    slower = ["--gpu", "A100-80", "--decode-tokens-per-second", "1000", "--segments", "8"]
    assert "! " not in run(app, [*QWEN, *slower]).output


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--gpus", "0"], ("gpus=0", "a positive integer")),
        (["--gpu", "H1000"], ("gpu=H1000", "A100-80", "--tflops", "H100")),
        (["--tflops", "-3"], ("tflops=-3", "a number")),
        (["--mfu", "1.5"], ("mfu=1.5", "to 1")),
        (["--mfu", "nan"], ("mfu=nan",)),
        (["--backend", "cache"], ("backend=cache", "'cached'")),
        (["--estimator", "vine"], ("estimator=vine", "monte_carlo")),
        (["--preset", "lean", "--estimator", "support"], ("estimator=support", "preset=lean uses confidence")),
        (["--segments", "9000"], ("segments=9000", "response-length=8192")),
        (["--decode-tokens-per-second", "0"], ("decode-tokens-per-second=0",)),
        (["--tensor-parallel", "3"], ("tensor-parallel=3", "gpus=8")),
        (["--response-length", "50000"], ("response-length=50000", "40,960 positions")),
        (["--model", "nobody/nothing"], ("model=nobody/nothing", "config.json", "Qwen/Qwen3-4B")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_wrong_option_is_named_and_ends_with_code_2(
    options: list[str], parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = CliRunner().invoke(app, [*QWEN, *options], env={"COLUMNS": "500"})
    assert result.exit_code == 2
    for part in parts:
        assert part in result.output


def test_a_plan_in_a_pipe_is_not_cut_to_a_narrow_terminal() -> None:
    narrow, wide = (CliRunner().invoke(app, QWEN, env={"COLUMNS": columns}).output for columns in ("80", "200"))
    assert narrow == wide
    assert "…" not in narrow


def test_unknown_gpus_are_told_what_there_is() -> None:
    assert find_gpu("a100-80").gb == 80
    with pytest.raises(ValueError, match="MI300X"):
        find_gpu("V100")


def test_planning_imports_no_host() -> None:
    code = (
        "import sys, rredcot_plugin.planning.result, rredcot_plugin.planning.tables, rredcot_plugin.planning.check\n"
        "found = [m for m in ('verl', 'ray', 'vllm', 'rredcot_plugin.dry_run') if m in sys.modules]\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_preset_says_which_estimator_is_planned() -> None:
    def planned(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["plan", "--model", "Qwen/Qwen3-4B", "--json", *arguments])
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    lean, default = planned("--preset", "lean"), planned()
    assert lean["setup"]["estimator"] == "confidence" and lean["setup"]["probes_a_trace"] == 0
    phases = {phase["name"]: phase["seconds"] for phase in lean["steps"]["confidence"]["phases"]}
    assert phases["probes"] == 0 and phases["credit"] > 0
    assert planned("--preset", "exact")["steps"]["support"] == default["steps"]["support"]
    assert CliRunner().invoke(app, ["plan", "--model", "Qwen/Qwen3-4B", "--preset", "leen"]).exit_code == 2


def test_one_rollout_of_a_prompt_has_the_ground_truth_alone_to_probe() -> None:
    def proposals(*words: str) -> int:
        done = CliRunner().invoke(app, [*QWEN, "--json", *words])
        assert done.exit_code == 0, done.output
        return int(json.loads(done.stdout)["setup"]["proposals"])

    assert [proposals("--rollouts", number) for number in ("1", "3", "8")] == [1, 3, 4]
    assert proposals("--rollouts", "1", "--proposals", "5") == 5
