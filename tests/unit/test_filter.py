"""`rredcot filter`: conditions are data and never code, presets keep what they say, files are not overwritten."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.offline.conditions import PRESETS, read_condition, select
from rredcot_plugin.offline.trace_stats import TRAITS, all_traits, group_of
from rredcot_plugin.report.traces import read_dumps

DOCS = Path(__file__).parents[2] / "docs"
WIDE = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
ATTACK = "[bold]x[/bold] \x1b[2J\u202e"


def record(uid: str, values: list[float | None], reward: float | None, *, text: str = "line") -> dict[str, Any]:
    """A scored trace whose states have these values; three tokens a segment."""
    after = [*values[1:], reward]
    segments = []
    for i, (value, behind) in enumerate(zip(values, after, strict=True)):
        delta = None if value is None or behind is None else behind - value
        earned = None if delta is None or value is None else delta + (value if i == 0 else 0.0)
        segments.append(
            {"text": f"{text} {i}\n", "tokens": 3, "value": value, "reward": earned, "advantage": delta}
        )
    return {
        "step": 1,
        "uid": uid,
        "prompt": "1 + 1 =",
        "ground_truth": "2",
        "reward": reward,
        "segments": segments,
    }


RECORDS = [
    record("mixed", [0.5, 0.9, 0.2], 0.0, text=ATTACK),  # had it, and lost it
    record("mixed", [0.5, 0.1, 0.2], 1.0),  # right by luck
    record("mixed", [0.5, 0.6, 0.9], 1.0),
    record("hard", [0.0, 0.05, 0.02], 0.0),
    record("hard", [0.0, 0.01, 0.03], 0.0),
    record("easy", [0.9, 0.95], 1.0),
    record("odd", [0.5, None], None),
]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in RECORDS), encoding="utf-8")
    return path


def run(*arguments: object):
    result = CliRunner().invoke(app, ["filter", *map(str, arguments)], env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def kept(scored: Path, *arguments: str) -> list[int]:
    """Which of ``RECORDS`` come out."""
    out = scored.with_name("kept.jsonl")
    result = run(scored, "-o", out, "--force", *arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert f"{len(lines)} of {len(RECORDS)}" in result.stdout
    return [RECORDS.index(line) for line in lines]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--where", "high-value-then-lost"], [0]),
        (["--where", "solved-by-luck"], [1]),
        (["--where", "never-solvable"], [3, 4]),
        (["--where", "never-solvable", "--invert"], [0, 1, 2, 5]),
        (["--where", "always-solved"], [5]),
        (["--where", "peak >= 0.7 and reward == 0"], [0]),
        (["--where", "0.1 < last <= .2 or not segments > 2"], [0, 1, 5]),
        (["--where", "2 * (peak - first) / 2 > 0.3"], [0, 2]),
        (["--where", "min_delta < -0.5"], [0]),
        (["--where", "drop > 0.5", "--by", "any"], [0, 1, 2]),
        (["--where", "reward > 0", "--by", "group"], [5]),
        (["--where", "group_size == 3", "--where", "reward > 0"], [1, 2]),
        (["--where", "group_peak < 0.1"], [3, 4]),
        (["--where", "1 / (reward - reward) != 5"], []),
        (["--where", "tokens == 6 and -fade <= 0 and +answer_share < 1"], [5]),
    ],
)
def test_what_is_kept(scored: Path, arguments: list[str], expected: list[int]) -> None:
    assert kept(scored, *arguments) == expected


def test_calibrated_values_of_lost_traces_are_high_enough(tmp_path: Path) -> None:
    """They are drawn to the mean: on the demo's rollouts hardly a lost trace ever reaches 0.7."""
    lost = [record("a", [0.5, 0.55, 0.1], 0.0), record("a", [0.5, 0.45, 0.1], 0.0), record("a", [0.5, 0.8], 1.0)]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lost))
    condition = read_condition("high-value-then-lost")
    assert select(read_dumps(path), [0, 0, 0], [condition]).kept == [True, False, False]


def test_numbers_of_a_trace(scored: Path) -> None:
    traits = all_traits(traces := read_dumps(scored), list(map(group_of, traces)))
    assert all(own.keys() == TRAITS.keys() for own in traits)
    expected = {
        "reward": 0.0, "first": 0.5, "last": 0.2, "peak": 0.9, "low": 0.2, "mean_value": 0.55, "drop": 0.9,
        "fade": 0.7, "min_delta": -0.7, "max_delta": 0.4, "answer_delta": -0.2, "answer_share": 0.2 / 1.3,
        "segments": 3, "tokens": 9, "step": 1, "group_size": 3, "group_reward": 2 / 3, "group_peak": 0.9,
    }  # fmt: skip
    assert traits[0] == pytest.approx(expected)
    assert math.isnan(traits[-1]["peak"])


@pytest.mark.parametrize("text", ["reward > 0", "not reward > 0", "peak < 2", "reward != 7"])
def test_a_trace_with_an_unknown_number_is_never_kept(scored: Path, text: str) -> None:
    traces = read_dumps(scored)
    for invert in (False, True):
        selection = select(traces, list(map(group_of, traces)), [read_condition(text)], invert)
        assert not selection.kept[-1]
        assert selection.unknown == 1


@pytest.mark.parametrize("text", ["peak / reward > 0", "not peak / reward > 9", "peak < 2 or peak / reward > 0"])
def test_a_quotient_by_zero_is_unknown(scored: Path, text: str) -> None:
    traces = read_dumps(scored)
    for invert in (False, True):
        kept_ones = select(traces, list(map(group_of, traces)), [read_condition(text)], invert).kept
        assert not any(kept for kept, trace in zip(kept_ones, traces, strict=True) if trace.reward == 0)


def test_no_warning_of_pythons_reaches_the_user(recwarn: pytest.WarningsRecorder) -> None:
    assert read_condition("reward>.5and peak>.3").names == {"reward", "peak"}
    assert not recwarn.list


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "__import__('os').system('touch /tmp/never') == 0",
        "reward.__class__ == 1",
        "(lambda: 1)() > 0",
        "[x for x in (1,)] == 1",
        "peak > (1).__class__",
        "peak ** 9 > 0",
        "9 ** 9 ** 9 ** 9 > 0",
        "peak // 2 > 0",
        "peak > 'a'",
        "f'{peak}' > 0",
        "peak > True",
        "peak > 1j",
        "peak is reward",
        "peak in reward",
        "peak if reward else last",
        "(peak := 1) > 0",
        "peak",
        "peak + 1",
        "1",
        "peak and last > 0",
        "peak > (last > 1)",
        "reward > 0 or __import__('os')",
        "reward > 0 or reward[0] > 1",
        "reward > 0; import os",
        "reward >",
        "peak > \x00",
        "",
        "*peak > 1",
        "peak > 1" + "0" * 400,
        "(" * 240 + "peak" + ")" * 240 + " > 0",
        "not " * 100 + "peak",
        "-" * 400 + "peak",
        "peak > 0" + " or peak > 0" * 50,
    ],
)
def test_what_is_no_condition_is_refused_and_not_run(text: str) -> None:
    with pytest.raises(ValueError, match="where: "):
        read_condition(text)


def test_an_unknown_name_is_told_with_the_known_ones(scored: Path) -> None:
    result = run(scored, "--where", "peek > 0.5")
    assert result.exit_code == 2
    message = " ".join(result.stderr.replace("│", " ").split())
    assert "unknown name 'peek'. Did you mean 'peak'?" in message
    assert "Names: reward, first, last, peak" in message
    assert "Presets: high-value-then-lost" in message
    assert "Did you mean 'never-solvable'?" in " ".join(run(scored, "--where", "never-solvabel").stderr.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--where 'peak > 0.7'"),
        (["--where", "peak > 0", "--by", "prompt"], "by='prompt': expected one of trace, group, any"),
        (["--where", "peak > 0", "--preview", "-1"], "--preview"),
        (["--what"], "--what"),
    ],
)
def test_wrong_usage_exits_with_2(scored: Path, arguments: list[str], told: str) -> None:
    result = run(scored, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_nothing_is_overwritten_without_force(scored: Path) -> None:
    out, before = scored.with_name("out.jsonl"), scored.read_bytes()
    out.write_text("mine")
    result = run(scored, "--where", "peak > 0", "-o", out)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert out.read_text() == "mine"
    assert run(scored, "--where", "peak > 0", "-o", scored, "--force").exit_code == 2
    assert scored.read_bytes() == before
    assert run(scored, "--where", "peak > 9", "-o", out, "--force").exit_code == 0
    assert out.read_text() == ""
    assert sorted(file.name for file in scored.parent.iterdir()) == ["out.jsonl", "scored.jsonl"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_is_no_output(scored: Path, force: list[str]) -> None:
    folder = scored.with_name("d")
    folder.mkdir()
    result = run(scored, "--where", "peak > 0", "-o", folder, *force)
    assert result.exit_code == 2
    assert "expected a file to write to, got a folder" in " ".join(result.stderr.replace("│", " ").split())
    assert "--force" not in result.stderr


def test_counts_and_preview_obey_nothing_that_the_model_wrote(scored: Path) -> None:
    result = run(scored, "--where", "high-value-then-lost", "--where", "reward == 0", "--preview", "3")
    assert result.exit_code == 0
    assert "1 of 7" in result.stdout
    assert "3 of 7" in result.stdout
    assert "unknown numbers, dropped" in result.stdout
    assert "[bold]x[/bold]" in result.stdout
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "−0.70" in result.stdout


def test_broken_lines_are_named_and_the_rest_is_filtered(scored: Path) -> None:
    with scored.open("a") as file:
        file.write('{"step": 1, "uid"\n{"prompt": "a", "response": "b"}\n')
    result = run(scored, "--where", "always-solved", "-o", scored.with_name("kept.jsonl"))
    assert result.exit_code == 1
    assert "line 8: left out: no complete JSON" in result.stderr
    assert "line 9: left out: no scored rollout (missing 'segments'; found: 'prompt', 'response')" in result.stderr
    assert len(scored.with_name("kept.jsonl").read_text().splitlines()) == 1


def test_half_a_surrogate_pair_is_no_text(scored: Path) -> None:
    with scored.open("a") as file:
        file.write(json.dumps(record("x", [0.5, 0.9], 1.0, text="\ud800")) + "\n")
        file.write(json.dumps(record("x", [0.5, 0.9], 1.0, text="\U0001f600")) + "\n")
    result = run(scored, "--where", "always-solved", "--preview", "9")
    assert result.exit_code == 1
    assert "line 8: left out: no Unicode text" in result.stderr
    assert "2 of 8" in result.stdout


def test_folders_of_dumps_are_read_and_unreadable_ones_named(scored: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert run(scored.parent, "--where", "peak > 0").exit_code == 0
    for path, told in ((tmp_path / "none", "no rollouts here"), (tmp_path / "x.jsonl", "no such file")):
        result = run(path, "--where", "peak > 0")
        assert result.exit_code == 1
        assert told in result.stderr


def test_names_lists_everything() -> None:
    result = run("--names")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in (*TRAITS, *PRESETS))


def test_the_page_has_every_name_and_preset() -> None:
    page = (DOCS / "guides" / "offline.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in TRAITS)
    for name, (condition, by) in PRESETS.items():
        assert f"| `{name}` | `{condition}` | {by} |" in page


def test_a_folder_s_own_files_are_no_output(scored: Path) -> None:
    before = scored.read_bytes()
    result = run(scored.parent, "--where", "peak > 0", "-o", scored, "--force")
    assert result.exit_code == 2
    assert "these are the rollouts themselves" in result.stderr
    assert scored.read_bytes() == before


def test_a_file_named_twice_counts_once(scored: Path) -> None:
    assert "of 7" in run(scored, scored, scored.parent, "--where", "peak > 0").stdout
