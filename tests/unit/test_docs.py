"""The examples in the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import rredcot_plugin as rr
from rredcot_plugin.testing import check_segmenter
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


def test_every_segmenter_has_its_line_on_the_configuration_page() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert not [name for name in rr.list_segmenters() if f"`{name}`" not in page]


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
