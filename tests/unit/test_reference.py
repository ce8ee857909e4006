"""What is generated is what the code says, and everything that a run logs is in the registry of metrics."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import rredcot_plugin as rr
from rredcot_plugin.allowed import Allowed
from rredcot_plugin.options import ESTIMATOR_DEFAULTS, Options
from rredcot_plugin.presets import PRESETS
from rredcot_plugin.reference.configuration import shipped
from rredcot_plugin.reference.files import files
from rredcot_plugin.reference.metric_names import SECTIONS, Metric, known_metrics
from rredcot_plugin.reference.metrics import NAME
from rredcot_plugin.registry import BASELINES, SEGMENTERS, SHAPERS, VALUE_ESTIMATORS
from rredcot_plugin.renamed import METRICS
from tests.unit.reference import text_rollouts

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "rredcot_plugin"
GENERATED = files()
LIKE_OURS = re.compile(r"(rredcot/[a-z_]+/|timing_s/rredcot_)[a-z_/]+")


# ---- files


@pytest.mark.parametrize("name", GENERATED)
def test_generated_files_are_what_the_code_says(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == GENERATED[name], "run `make reference`"


def test_the_command_names_stale_files_and_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rredcot_plugin.reference"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)

    assert run("--check", str(ROOT)).returncode == 0
    stale = run("--check", str(tmp_path))
    assert stale.returncode == 1 and stale.stdout.count("differs:") == len(GENERATED)
    assert run("--write", str(tmp_path)).returncode == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == set(GENERATED)
    assert run().returncode == 2


def test_every_key_name_and_preset_has_its_row() -> None:
    page = GENERATED["docs/reference/configuration.md"]
    keys = [f.name for f in dataclasses.fields(Options)]
    names = [name for registry in (SEGMENTERS, VALUE_ESTIMATORS, BASELINES, SHAPERS) for name in shipped(registry)]
    for name in [*keys, *names, *PRESETS, *ESTIMATOR_DEFAULTS, "preset"]:
        assert f"\n| `{name}` | " in page
    assert all(len(set(re.findall(r"(?<!\\)\|", line))) <= 1 for line in page.splitlines())


def test_the_rows_of_a_table_have_its_columns() -> None:
    for name in ("docs/reference/configuration.md", "docs/reference/metrics.md"):
        columns = None
        for line in GENERATED[name].splitlines():
            if not line.startswith("|"):
                columns = None
                continue
            found = len(re.findall(r"(?<!\\)\|", line))
            columns = columns or found
            assert found == columns, line


def test_every_option_says_what_it_does_in_sentences() -> None:
    for key in dataclasses.fields(Options):
        says: str = key.metadata["says"]
        assert says[0].isupper() and says.endswith("."), key.name
        allowed: Allowed = key.metadata["allowed"]
        if key.default is not dataclasses.MISSING:
            allowed.check(key.name, key.default)


def test_pages_that_presets_cite_exist() -> None:
    cited = {
        page
        for preset in PRESETS.values()
        for page in re.findall(r"docs/[\w/]+\.md", preset.purpose + preset.evidence)
    }
    assert cited
    assert not [page for page in cited if not (ROOT / page).is_file()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_group_of_a_preset_is_the_preset(name: str) -> None:
    every = yaml.safe_load(GENERATED["rredcot_plugin/conf/rredcot/default.yaml"])
    own = yaml.safe_load(GENERATED[f"rredcot_plugin/conf/rredcot/{name}.yaml"])
    assert own.pop("defaults") == ["default", "_self_"]
    assert rr.RRedCoTConfig.from_mapping(every | own) == rr.RRedCoTConfig.from_mapping({"preset": name})


# ---- metrics


def literals() -> Iterator[tuple[str, str]]:
    """File and text of every string literal in the source that looks like a metric of ours; docstrings are none."""
    skipped = {SOURCE / "renamed.py", SOURCE / "reference" / "metric_names.py"}
    for path in SOURCE.rglob("*.py"):
        if path in skipped:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "marked_timer":
                assert isinstance(node.args[0], ast.Constant)
                yield path.name, f"timing_s/{node.args[0].value}"
            if isinstance(node, ast.Constant) and LIKE_OURS.fullmatch(str(node.value)):
                yield path.name, node.value


def test_every_metric_of_the_source_is_in_the_registry() -> None:
    known = known_metrics()
    prefixes = {metric.name for section in SECTIONS for metric in section.metrics}
    found = list(literals())
    assert len(found) > 40
    assert not [(file, name) for file, name in found if name not in known | prefixes]


def test_every_metric_of_the_registry_is_in_the_source() -> None:
    found = {name for _, name in literals()}
    assert not [
        metric.name
        for section in SECTIONS
        for metric in section.metrics
        if metric.name not in found and not found & set(metric.names)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"calibrate": "none", "mode": "weighted"},
        {"calibrate": "trees"},
        {"shapers": ["smoothing"], "baseline": "value"},
        {"segmenter": "none"},
        {"preset": "lean"},
    ],
)
def test_assign_credit_logs_nothing_that_the_registry_lacks(options: dict) -> None:
    rollouts = text_rollouts(["a\nb\nc", "a\nd", "e\nf", "g\nh\ni"] * 4, [1.0, 0.0, 1.0, 0.0] * 4)
    rollouts = dataclasses.replace(rollouts, log_probs=-rollouts.response_mask.float())
    config = rr.RRedCoTConfig.from_mapping({"segmenter": "newline", **options})
    found = set(rr.assign_credit(rollouts, config).metrics)
    assert len(found) > 15
    assert not found - known_metrics()


def test_old_metrics_lead_to_known_ones_and_hide_none() -> None:
    assert set(METRICS.values()) <= known_metrics()
    assert not set(METRICS) & known_metrics()


def every_metric() -> list[Metric]:
    return [metric for section in SECTIONS for metric in section.metrics]


def test_every_metric_says_what_it_is_in_sentences_and_refers_to_known_ones() -> None:
    for metric in every_metric():
        assert metric.meaning.endswith(".") and metric.unit and metric.healthy, metric.name
        assert not metric.otherwise or metric.otherwise.endswith("."), metric.name
        for name in NAME.findall(f"{metric.meaning} {metric.healthy} {metric.otherwise}"):
            ours = name.startswith("rredcot/") or name.startswith("timing_s/rredcot")
            assert not ours or name in {other.name for other in every_metric()}, f"{metric.name}: {name}"


def test_names_reduce_in_verl_as_their_suffix_says() -> None:
    """verl's aggregator looks for these words anywhere in a name."""
    for metric in every_metric():
        stem = metric.name
        assert not [word for word in ("min", "max", "sum", "total") if metric.suffixes and word in stem], stem
