"""The command line: help, exit codes, what `list` and `doctor` say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import rredcot_plugin
from rredcot_plugin.cli import NEEDS
from rredcot_plugin.commands import checks
from rredcot_plugin.commands.app import app
from rredcot_plugin.presets import PRESETS
from rredcot_plugin.registry import list_segmenters, list_value_estimators

WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}

GOOD_STATE = {
    "verl": "0.9.1", "estimators": ["gae", "rredcot"], "trainers": {"sync": True, "colocate_async": True},
    "engines": ["fsdp2/cpu"], "platform": "PlatformCPU", "device": "cpu", "devices": 1, "available": True,
    "options": ["lam"],
}  # fmt: skip


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env=WIDE)


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rredcot_plugin.cli", *arguments]
    clean = {k: v for k, v in os.environ.items() if k not in ("VERL_USE_EXTERNAL_PLUGINS", "VERL_PLATFORM")}
    return subprocess.run(
        command, env={**clean, **WIDE, **environment}, capture_output=True, text=True, timeout=400
    )


@pytest.mark.parametrize("arguments", [(), ("doctor",), ("list",), ("demo",), ("score",), ("filter",)])
def test_help(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"rredcot {rredcot_plugin.__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("scores",),
        ("list", "--what"),
        ("demo", "--steps", "0"),
        ("demo", "--estimators", "grpo,red"),
        ("demo", "--rollout", "sglang"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_list_shows_every_name_and_its_options() -> None:
    output = invoke("list").output
    for name in (*list_segmenters(), *list_value_estimators(), "rredcot", "cached", "packed", "batched"):
        assert name in output
    assert "tokens=64" in output
    assert "max_proposals=8" in output


def test_list_in_80_columns_cuts_nothing_and_says_once_what_segmenters_share() -> None:
    output = CliRunner().invoke(app, ["list"], env={**WIDE, "COLUMNS": "80"}).output
    assert "…" not in output
    assert output.count("max_response_tokens=8192") == 1
    assert "'Finally')" in output, "the end of a long default"


def test_list_shows_presets_with_their_keys() -> None:
    output = invoke("list", "--presets").output
    for name, preset in PRESETS.items():
        assert name in output
        assert all(f"{key}={value}" in output for key, value in preset.keys.items())


@pytest.mark.parametrize("name", NEEDS)
def test_without_what_the_command_line_needs_it_says_how_to_install_it(name: str) -> None:
    script = f"import sys; sys.modules[{name!r}] = None; from rredcot_plugin.cli import main; main()"
    arguments = [sys.executable, "-c", script, "explain", "lam=0.95"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == f"not installed: {name}; pip install 'rredcot[cli]'\n"


def test_supported_releases_are_the_ones_that_the_package_asks_for() -> None:
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    asked = {r.name: r.specifier for r in map(Requirement, requires("rredcot") or [])}
    for name, releases in checks.PACKAGES.items():
        for release in releases:
            assert asked[name].contains(release if release.count(".") > 1 else f"{release}.0"), name
            assert not asked[name].contains("99"), name


def test_package_of_another_release_or_absent_fails_with_the_command() -> None:
    other = checks.check_package("torch", ["1.0"])
    assert (other.status, other.way_out) == ("failed", checks.INSTALL)
    absent = checks.check_package("rredcot-no-such-distribution", [])
    assert (absent.status, absent.found, absent.way_out) == ("failed", "not installed", checks.INSTALL)


@pytest.mark.parametrize(
    ("policy", "status"),
    [("auto", "ok"), ("rredcot", "ok"), ("a, rredcot", "ok"), ("none", "failed"), ("a", "failed")],
)
def test_policy_of_verl_for_plugins(policy: str, status: str) -> None:
    assert checks.check_entry_point({"VERL_USE_EXTERNAL_PLUGINS": policy}).status == status


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"estimators": ["gae"]}, "advantage estimator"),
        ({"trainers": {"sync": True, "colocate_async": False}}, "trainers"),
        ({"engines": []}, "probe engines"),
        ({"options": []}, "Hydra group"),
    ],
)
def test_each_failing_line_has_a_way_out(change: dict, line: str) -> None:
    assert all(check.status == "ok" for check in checks.state_checks(GOOD_STATE, ""))
    failed = [check for check in checks.state_checks({**GOOD_STATE, **change}, "") if check.status == "failed"]
    assert [check.name for check in failed] == [line]
    assert failed[0].way_out


def test_no_device_is_a_note_unless_a_platform_was_asked_for() -> None:
    without = {**GOOD_STATE, "available": False, "devices": 0}
    assert [c.status for c in checks.state_checks(without, "") if c.name == "device"] == ["note"]
    assert [c.status for c in checks.state_checks(without, "cuda") if c.name == "device"] == ["failed"]


@pytest.mark.e2e
def test_doctor_is_content_here() -> None:
    done = run_command("doctor", VERL_PLATFORM="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fsdp2/cpu" in done.stdout
    assert "1 x cpu" in done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"VERL_USE_EXTERNAL_PLUGINS": "none"}, "unset VERL_USE_EXTERNAL_PLUGINS"),
        ({"VERL_PLATFORM": "abacus"}, "Unknown platform 'abacus'"),
    ],
)
def test_doctor_says_what_is_wrong(environment: dict[str, str], reason: str) -> None:
    done = run_command("doctor", **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert reason in done.stdout
