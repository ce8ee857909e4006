"""The examples in the documentation run."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import torch

import rredcot_plugin as rr
from rredcot_plugin.testing import check_segmenter
from rredcot_plugin.values.base import Estimate
from tests.unit.reference import pieces, text_rollouts

DOCS = Path(__file__).parents[2] / "docs"


def test_the_segmenter_of_the_extension_page_works_by_file(tmp_path: Path) -> None:
    source = re.search(r"```python\n(# my_segmenter.py\n.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert source is not None
    file = tmp_path / "my_segmenter.py"
    file.write_text(source[1])
    segmenter = rr.get_segmenter({"path": str(file), "name": "AfterEquals"}, sign=":")
    check_segmenter(segmenter)
    rollouts = text_rollouts(["a: b: c"])
    assert pieces(rollouts, segmenter(rollouts)) == ["a:", " b:", " c"]


def test_the_estimator_of_the_extension_page_works() -> None:
    source = re.search(
        r"```python\n(@dataclass.*?class HalfWay.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL
    )
    assert source is not None
    names = {"dataclass": dataclass, "ClassVar": ClassVar, "torch": torch, "Estimate": Estimate}
    exec(source[1], names)
    rr.register_value_estimator("half_way", overwrite=True)(names["HalfWay"])
    config = rr.RRedCoTConfig(value_estimator="half_way", segmenter="newline", calibrate="none")
    credit = rr.assign_credit(text_rollouts(["a\nb\nccc"]), config)
    assert credit.values[0].tolist() == [0.0, 0.5, 1.0]


def test_every_name_has_its_line_on_the_configuration_page() -> None:
    page = (DOCS / "configuration.md").read_text()
    names = [*rr.list_segmenters(), *rr.list_value_estimators(), *rr.list_shapers()]
    shipped = [
        name for name in names if not name.endswith("_for_test") and name not in ("half_way", "halve_answer")
    ]
    assert not [name for name in shipped if f"`{name}`" not in page]


def test_every_key_has_its_line_on_the_configuration_page() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert not [field.name for field in fields(rr.RRedCoTConfig) if f"`{field.name}`" not in page]


def test_every_function_of_the_formula_page_exists() -> None:
    table = re.findall(r"^\|.*\| ([^|]*) \|$", (DOCS / "math.md").read_text(), re.MULTILINE)
    names = {name for cell in table for name in re.findall(r"`(?:\w+\.)*(\w+)", cell)} - {"shapers"}
    source = "\n".join(path.read_text() for path in (DOCS.parent / "rredcot_plugin").rglob("*.py"))
    assert len(names) > 12
    assert not [
        name for name in names if not re.search(rf"(?:def|class) {name}\b|^    {name}:", source, re.MULTILINE)
    ]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


VERLS_OWN = ("Unknown advantage estimator", "Could not override", "Key 'rredcot'")


def test_every_message_of_the_troubleshooting_page_is_one_that_we_raise() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    messages = [
        m for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for m in re.findall(r"`([^`]+)`", cell)
    ]
    source = "\n".join(path.read_text() for path in (DOCS.parent / "rredcot_plugin").rglob("*.py"))
    parts = [
        part.strip(" .")
        for message in messages
        if not message.startswith(VERLS_OWN)
        for part in re.split(r"…| X | N |value_kwargs\.path|/mean|:", message)
    ]
    assert len(parts) > 10
    assert not [part for part in parts if part not in source]
