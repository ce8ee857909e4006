"""The GPU benchmark on a CPU with a tiny model: its passes are right, and it says what it cannot do."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu import correctness, passes, tables, timing

from rredcot_plugin.probes import cached as cached_backend

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")
TINY = passes.SHAPES["tiny"]


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / "gpu" / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_tiny_run_writes_its_cells_and_a_second_one_keeps_them(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    arguments = [
        "--device",
        "cpu",
        "--tiny",
        "--rounds",
        "1",
        "--passes",
        "cached",
        "flex",
        "--output",
        str(output),
    ]
    first = run_script(*arguments)
    assert first.returncode == 0, first.stderr
    record = json.loads(output.read_text())
    kinds = [cell["kind"] for cell in record["raw"]["cells"].values()]
    assert kinds == ["check"] + 4 * ["time"]
    head = next(line for line in first.stdout.splitlines() if line.startswith("| model"))
    assert head.startswith("| model | T | K | A | plain, ms | floor | cached | flex |")
    assert "| tiny | 256 | 4 | 16 |" in first.stdout and " | 1.250 | " in first.stdout
    second = run_script(*arguments)
    assert second.returncode == 0 and "5 of 5 cells are there already" in second.stdout
    assert "[1/5]" in first.stdout and "/5]" not in second.stdout
    assert json.loads(output.read_text())["raw"] == record["raw"]


def test_without_a_gpu_the_way_out_is_named() -> None:
    done = run_script()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no CUDA device" in done.stderr and "--device cpu --tiny" in done.stderr


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--passes", "cashed"]])
def test_wrong_use_is_refused(arguments: list[str]) -> None:
    assert run_script(*arguments).returncode == 2


def test_every_pass_gives_right_log_probs() -> None:
    found = correctness.check_backends(TINY, CPU, ["cached", "cached@8", "packed", "flex"], 64, 5)
    assert found["wrong"] == []
    assert max(found["errors"]["float32"].values()) < 1e-4
    assert found["limits"]["bfloat16"] < 1


def test_a_limit_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cached_backend.plan_fork

    def one_too_few(*args: Any) -> Any:
        plan = right(*args)
        return dataclasses.replace(plan, limit=(plan.limit - 1).clamp(min=0))

    monkeypatch.setattr(cached_backend, "plan_fork", one_too_few)
    found = correctness.check_backends(TINY, CPU, ["cached", "packed"], 64, 5)
    assert [line.split(":")[0] for line in found["wrong"]] == ["cached in float32", "cached in bfloat16"]


@torch.no_grad()
def test_the_trace_log_probs_are_those_of_the_whole_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "HEAD_ROWS", 16)
    model = passes.build_model(TINY, CPU, torch.float32)
    work = passes.draw_work(TINY.vocab, 50, 3, 4, CPU)
    logits = model(input_ids=work.ids[None]).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, work.ids[1:, None])[:, 0]
    for name, run in passes.make_passes(model, work, ["plain", "cached", "packed", "flex"]).items():
        trace, _ = run()
        torch.testing.assert_close(
            trace, expected, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_last_probe_stands_behind_the_whole_trace() -> None:
    work = passes.draw_work(100, 40, 7, 3, CPU)
    boundaries = [boundary for boundary, _, _ in work.specs]
    assert boundaries == sorted(set(boundaries)) and boundaries[-1] == 40 and len(boundaries) == 7


def test_a_pass_that_the_device_refuses_is_noted_and_the_others_go_on() -> None:
    def refuse() -> None:
        raise RuntimeError("out of memory\nmore words")

    found = timing.measure_passes({"plain": lambda: None, "flex": refuse}, 2, CPU)
    assert found["failed"] == {"flex": "out of memory"}
    assert len(found["seconds"]["plain"]) == 2 and found["seconds"]["flex"] == []
    assert len(found["warm_up_seconds"]["plain"]) == timing.WARM_UP_ROUNDS
    cell = {
        "kind": "time",
        "shape": "s",
        "tokens": 16384,
        "probes": 64,
        "probe_tokens": 16,
        "floor": 1.0625,
        **found,
    }
    assert "failed" in tables.make_table({"c": cell}, ["flex"])
    assert "was not measured" in tables.headline({"c": cell}, ["flex"])


def test_the_headline_compares_with_the_target() -> None:
    seconds = {"plain": [1.0, 1.0], "cached": [1.07, 1.07], "packed": [1.2, 1.2]}
    cell = {"kind": "time", "shape": "s", "tokens": 16384, "probes": 64, "seconds": seconds}
    assert tables.headline({"c": cell}, ["cached", "packed"]) == "s: cached 1.070 x plain, target 1.08: met"
    assert tables.headline({"c": cell}, ["packed"]) == "s: packed 1.200 x plain, target 1.08: missed"
