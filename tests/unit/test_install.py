"""What pyproject.toml claims, against the pages that repeat it."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import rredcot_plugin as rr
from rredcot_plugin.cli import NEEDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALL_PAGE = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")


def claimed(extra: str, name: str) -> Requirement:
    (found,) = [r for r in map(Requirement, EXTRAS[extra]) if r.name == name]
    return found


def pinned(name: str) -> Version:
    """The version of a package in the environment of `make env`."""
    lines = (ROOT / "constraints/light.txt").read_text(encoding="utf-8").splitlines()
    (found,) = [line.removeprefix(f"{name}==") for line in lines if line.startswith(f"{name}==")]
    return Version(found)


def pinned_by_verl(extra: str, name: str) -> list[str]:
    """Versions of a package that an extra of the installed verl pins."""
    requirements = [Requirement(text) for text in metadata.requires("verl") or []]
    of_extra = [r for r in requirements if r.marker is not None and r.marker.evaluate({"extra": extra})]
    plain = [r for r in requirements if r.marker is not None and r.marker.evaluate({"extra": ""})]
    return [
        spec.version
        for r in of_extra
        if r.name == name and r not in plain
        for spec in r.specifier
        if spec.operator == "=="
    ]


def test_the_extra_resolves_beside_verls_own_for_gpus() -> None:
    (version,) = pinned_by_verl("vllm", "transformers")
    for extra in ("verl", "score"):
        assert version in claimed(extra, "transformers").specifier, extra
    (torch,) = pinned_by_verl("vllm", "torch")
    (own,) = [r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch"]
    assert torch in own.specifier


def test_the_lowest_version_that_is_claimed_is_the_one_that_is_tested() -> None:
    (lowest,) = [s.version for s in claimed("verl", "transformers").specifier if s.operator == ">="]
    assert f"transformers=={lowest}.0" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"{lowest}.0 for probes" in (ROOT / "docs/start/install.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("extra", ["verl", "score"])
def test_the_pin_is_of_the_highest_minor_release_that_is_claimed(extra: str) -> None:
    specifier = claimed(extra, "transformers").specifier
    major, minor = pinned("transformers").release[:2]
    assert pinned("transformers") in specifier
    assert Version(f"{major}.{minor + 1}.0") not in specifier
    assert Version(f"{major + 1}.0.0") not in specifier


def test_the_command_line_brings_what_it_reads_its_options_with() -> None:
    modules = {Requirement(text).name.removeprefix("py") for text in EXTRAS["cli"]}
    assert modules == set(NEEDS)


def test_the_pins_are_claimed() -> None:
    own = {r.name: r for r in map(Requirement, PROJECT["dependencies"])}
    assert pinned("verl") in claimed("verl", "verl").specifier
    assert all(pinned(name) in own[name].specifier for name in ("torch", "numpy"))
    assert f"torch | {pinned('torch')} " in INSTALL_PAGE
    assert f"transformers | {pinned('transformers')};" in INSTALL_PAGE
    assert f"numpy {pinned('numpy')} is pinned" in INSTALL_PAGE


@pytest.mark.skipif(Path(sys.prefix).name != ".venv", reason="for .venv of make env")
@pytest.mark.parametrize("name", ["torch", "numpy", "transformers", "verl"])
def test_the_installed_version_is_the_pinned_one(name: str) -> None:
    assert Version(Version(metadata.version(name)).public) == pinned(name)


def test_the_package_and_the_citation_have_the_projects_version() -> None:
    assert rr.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
