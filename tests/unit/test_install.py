"""What pyproject.toml claims, against the pages that repeat it."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import rredcot_plugin as rr

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def claimed(extra: str, name: str) -> Requirement:
    (found,) = [r for r in map(Requirement, EXTRAS[extra]) if r.name == name]
    return found


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


def test_the_package_and_the_citation_have_the_projects_version() -> None:
    assert rr.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
