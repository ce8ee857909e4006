"""The examples in the documentation run."""

from __future__ import annotations

import pkgutil
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import rredcot_plugin as rr
from rredcot_plugin.commands.app import app
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.integrations.verl.tracker_payload import credit_numbers
from rredcot_plugin.integrations.verl.tracking import DROPPED, TABLE
from rredcot_plugin.testing import check_segmenter
from tests.unit.recipe_scripts import Argv, Compose, argv_reader, verls_configuration
from tests.unit.reference import pieces, text_rollouts

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
GENERATED = [DOCS / "reference" / name for name in ("configuration.md", "metrics.md")]
"""Tables that are as long as what they list."""


def test_the_segmenter_of_the_extension_page_works_by_file(tmp_path: Path) -> None:
    source = re.search(
        r"```python\n(# my_segmenter.py\n.*?)```", (DOCS / "guides/extending.md").read_text(), re.DOTALL
    )
    assert source is not None
    file = tmp_path / "my_segmenter.py"
    file.write_text(source[1])
    segmenter = rr.get_segmenter({"path": str(file), "name": "AfterEquals"}, sign=":")
    check_segmenter(segmenter)
    rollouts = text_rollouts(["a: b: c"])
    assert pieces(rollouts, segmenter(rollouts)) == ["a:", " b:", " c"]


def test_the_estimator_of_the_extension_page_works(tmp_path: Path) -> None:
    source = re.search(
        r"```python\n(# my_values.py.*?class HalfWay.*?)```", (DOCS / "guides/extending.md").read_text(), re.DOTALL
    )
    assert source is not None
    file = tmp_path / "my_values.py"
    file.write_text(source[1])
    half_way = rr.get_value_estimator({"path": str(file), "name": "HalfWay"})
    rr.register_value_estimator("half_way", overwrite=True)(type(half_way))
    config = rr.RRedCoTConfig(value_estimator="half_way", segmenter="newline", calibrate="none")
    credit = rr.assign_credit(text_rollouts(["a\nb\nccc"]), config)
    assert credit.values[0].tolist() == [0.0, 0.5, 1.0]


def test_every_python_block_of_the_extension_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides/extending.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.syspath_prepend(tmp_path)
    for number, block in enumerate(blocks):
        name = re.match(r"# (\w+\.py)\n", block)
        file = tmp_path / (name[1] if name else f"block_{number}.py")
        file.write_text(block)
        runpy.run_path(str(file), run_name=file.stem)


def test_what_extensions_need_is_exported_with_a_sentence() -> None:
    for name in rr.__all__:
        assert re.search(r"\w.*\.(\s|$)", getattr(rr, name).__doc__ or ""), f"{name}: no sentence in its docstring"
    assert {"Estimate", "Evidence", "Probed"} <= set(rr.__all__)


def test_every_name_has_its_line_on_the_configuration_page() -> None:
    page = (DOCS / "reference/configuration.md").read_text()
    names = [*rr.list_segmenters(), *rr.list_value_estimators(), *rr.list_shapers()]
    shipped = [
        name for name in names if not name.endswith("_for_test") and name not in ("half_way", "halve_answer")
    ]
    assert not [name for name in shipped if f"`{name}`" not in page]


def test_every_key_has_its_line_on_the_configuration_page() -> None:
    page = (DOCS / "reference/configuration.md").read_text()
    assert not [field.name for field in fields(rr.RRedCoTConfig) if f"`{field.name}`" not in page]


def test_every_function_of_the_formula_page_exists() -> None:
    table = re.findall(r"^\|.*\| ([^|]*) \|$", (DOCS / "reference/math.md").read_text(), re.MULTILINE)
    names = {name for cell in table for name in re.findall(r"`(?:\w+\.)*(\w+)", cell)} - {"shapers"}
    source = "\n".join(path.read_text() for path in (DOCS.parent / "rredcot_plugin").rglob("*.py"))
    assert len(names) > 12
    assert not [
        name for name in names if not re.search(rf"(?:def|class) {name}\b|^    {name}:", source, re.MULTILINE)
    ]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_python_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]


def words(page: Path) -> int:
    """Words of a page, without the bars of tables."""
    return sum(word not in ("|", "---") for word in page.read_text().split())


def test_the_readme_stays_short_and_the_pages_too() -> None:
    assert len(README.read_text().splitlines()) <= 140
    assert sum(words(page) for page in [README, *DOCS.rglob("*.md")] if page not in GENERATED) < 20_000


def test_every_page_has_its_place_in_the_navigation_and_on_the_map() -> None:
    pages = {f"{page.relative_to(DOCS)}" for page in DOCS.rglob("*.md")}
    assert set(re.findall(r": ([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)) == pages
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text())) == pages - {"index.md"}


def test_every_page_that_the_code_points_at_exists() -> None:
    root = DOCS.parent
    files = [root / "Makefile"]
    for folder in ("rredcot_plugin", "benchmarks", "recipes", "examples", "tests", "tools"):
        files += [file for ending in ("py", "sh", "sbatch") for file in (root / folder).rglob(f"*.{ending}")]
    pointers = {(file, page) for file in files for page in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text())}
    assert len({page for _, page in pointers}) > 8
    assert not [f"{file}: {page}" for file, page in sorted(pointers) if not (root / page).is_file()]


def test_every_name_of_the_api_page_exists() -> None:
    names = re.findall(r"^::: rredcot_plugin\.([\w.]+)$", (DOCS / "reference/api.md").read_text(), re.MULTILINE)
    assert set(rr.__all__) & set(names) >= {"assign_credit", "Rollouts", "Segments", "Credit", "RRedCoTConfig"}
    for name in names:
        pkgutil.resolve_name(f"rredcot_plugin.{name}")


def test_evidence_opens_with_its_claim_and_its_caveats() -> None:
    for page in (DOCS / "evidence").glob("*.md"):
        paragraphs = page.read_text().split("\n\n")
        assert paragraphs[1].startswith("**"), page.name
        assert any(part.startswith("**Caveats") for part in paragraphs[:6]), page.name


VERLS_OWN = ("Unknown advantage estimator", "Could not override", "Key 'rredcot'")


def test_every_message_of_the_troubleshooting_page_is_one_that_we_raise() -> None:
    page = (DOCS / "start/troubleshooting.md").read_text()
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


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_into_pages_lead_to_a_heading() -> None:
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            headings = re.findall(
                r"^#+ (.*)$", (page.parent / target if target else page).read_text(), re.MULTILINE
            )
            assert anchor in map(slug, headings), f"{page.name}: {target}#{anchor}"


def test_histograms_and_tables_have_their_line_on_the_metrics_page() -> None:
    page = (DOCS / "reference/metrics.md").read_text()
    credit = rr.assign_credit(text_rollouts(["a\nb", "c\nd"], [1.0, 0.0]), rr.RRedCoTConfig(segmenter="newline"))
    assert not [name for name in [*credit_numbers(credit), DROPPED, TABLE] if f"`{name}`" not in page]


# ---- the commands of the first pages

FIRST_PAGES = ("../README.md", "start/quickstart.md", "guides/recipes.md")


@pytest.fixture(scope="module")
def argv_of(tmp_path_factory: pytest.TempPathFactory) -> Argv:
    return argv_reader(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    with verls_configuration() as build:
        yield build


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command in the page's shell blocks, without environment variables in front."""
    for block in re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words and words[0] != "export":
                yield words


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_every_command_of_the_first_pages_can_be_given(page: str) -> None:
    root = DOCS.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = (root / ".ci" / "run").read_text() + (root / ".github/workflows/ci.yml").read_text()
    ours = typer.main.get_command(app)
    for program, *arguments in commands(page):
        if program.endswith("rredcot"):
            name, command, rest = ours.resolve_command(typer.Context(ours), arguments)
            command.make_context(name, rest)  # exits for an option that it does not know
        elif program == "make":
            assert f"make {arguments[0]}" in tested
        elif program == "pip":
            assert set(re.split(r"[\[\],]", arguments[-1])[1:-1]) <= extras.keys()
        elif program == "bash":
            assert arguments[0] == "my_grpo_script.sh"
        else:
            assert (root / program).is_file(), program


def test_every_override_of_the_first_pages_composes(argv_of: Argv, compose: Compose) -> None:
    found = [words for page in FIRST_PAGES for words in commands(page) if any("=" in word for word in words)]
    assert len(found) >= 6
    for program, *arguments in found:
        overrides = [word for word in arguments if re.match(r"\+?[a-z_.]+=", word)]
        script = next((word for word in (program, *arguments) if word.startswith("recipes/")), None)
        given = argv_of(DOCS.parent / script) if script else ("algorithm.adv_estimator=grpo",)
        if script is None or "tiny" not in script:  # which reads its own data and is put through in its own tests
            settings = read_settings(compose([*given, *overrides]))
            assert settings.lam == (0.95 if "+algorithm.rredcot.lam=0.95" in overrides else 1.0)


def test_a_key_that_a_recipe_sets_is_changed_without_the_plus(argv_of: Argv, compose: Compose) -> None:
    given = argv_of(DOCS.parent / "recipes/math/run_qwen25_math_1p5b_fsdp2_vllm.sh")
    assert read_settings(compose([*given, "algorithm.rredcot.segmenter=newline"])).segmenter == "newline"


def test_the_metrics_of_the_first_pages_exist() -> None:
    known = (DOCS / "reference/metrics.md").read_text()
    for page in (*FIRST_PAGES, "guides/tuning.md", "start/troubleshooting.md"):
        for name in re.findall(r"`((?:rredcot|timing_s/rredcot)[/_][a-z_/]+)`", (DOCS / page).read_text()):
            assert name in known or name.rsplit("/", 1)[0] in known, f"{page}: {name}"


def test_the_code_cites_no_page_that_the_project_does_not_hold() -> None:
    root = DOCS.parent
    folders = ("rredcot_plugin", "benchmarks", "recipes", "examples")
    pages = [
        *root.glob("*.md"),
        *(page for folder in ("docs", *folders) for page in (root / folder).rglob("*.md")),
    ]
    held = {page.name for page in pages}
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    cited = {(file, page) for file in files for page in re.findall(r"\b[\w/-]*\w\.md\b", file.read_text())}
    assert len(cited) > 24
    assert not [f"{file}: {page}" for file, page in sorted(cited) if Path(page).name not in held]
