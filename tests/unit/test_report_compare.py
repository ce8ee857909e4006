"""`rredcot report --compare` and `--watch`: runs side by side, and a page that follows a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rredcot_plugin.commands.report import name_runs
from rredcot_plugin.report.compare import compare_runs
from rredcot_plugin.report.compare_page import render_comparison
from rredcot_plugin.report.options import read_options
from rredcot_plugin.report.watch import signature, watch
from tests.unit.report_runs import ATTACK, run, trace, write
from tests.unit.test_report_terminal import Elements


def dump(
    folder: Path, *steps: int, reward: float = 1.0, prompts: int = 3, lam: float = 1.0, same: bool = True
) -> Path:
    """A run whose traces of prompt i at a step earn ``reward`` or 0 in turn; with ``same``, prompts of all runs are equal."""
    for step in steps:
        lines = []
        for i in range(prompts):
            prompt = f"{i} + {i} =" if same else f"{folder.name} {i} ="
            for j in range(2):
                final = reward if (i + j) % 2 else 0.0
                credits = [0.1, final - 0.6]
                lines.append(
                    trace(credits, step=step, uid=f"{step}.{i}", text=f"{folder.name} {i}.{j}", prompt=prompt)
                )
        write(folder / f"{step}.jsonl", *lines)
    (folder / "run.json").write_text(
        json.dumps({"version": "1", "options": {"lam": lam, "segmenter": {"name": "a"}}})
    )
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    return {"one": dump(Path("a/credit"), 1, 2), "two": dump(Path("b/credit"), 2, 3, lam=0.5, reward=0.5)}


# ---- two runs


def test_the_same_prompts_stand_beside_each_other(runs: dict[str, Path]) -> None:
    found = compare_runs(runs)
    assert found.shared == 3
    assert len(found.pairs) == 3
    for pair in found.pairs:
        assert len({group.prompt for group in pair}) == 1
        assert [group.step for group in pair] == [2, 2], "the step that both have"
        assert all(len(group.traces) == 2 for group in pair)
    assert found.differing == [("options.lam", ["1.0", "0.5"])]
    assert [step.step for step in found.runs[0].corpus.steps] == [1, 2], "numbers are over all traces"


def test_prompts_at_different_steps_meet_at_their_last_ones(tmp_path: Path) -> None:
    found = compare_runs({"a": dump(tmp_path / "a", 1, 2), "b": dump(tmp_path / "b", 7)})
    assert {tuple(group.step for group in pair) for pair in found.pairs} == {(2, 7)}


def test_the_greatest_difference_comes_first(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl", *(trace([0.5 * (i == 2) or 0.01 * i], prompt=f"{i} =", uid=str(i)) for i in range(4))
    )
    write(tmp_path / "b.jsonl", *(trace([0.0], prompt=f"{i} =", uid=str(i)) for i in range(4)))
    found = compare_runs({"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"})
    assert [pair[0].prompt for pair in found.pairs] == ["2 =", "3 =", "1 =", "0 ="]
    few = compare_runs({"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"}, max_traces=6)
    assert [pair[0].prompt for pair in few.pairs] == ["2 ="]
    assert few.shared == 4


def test_the_page_has_curves_options_and_traces_of_both(runs: dict[str, Path]) -> None:
    result = run(*runs.values(), "--compare", "-o", "compare.html")
    assert result.exit_code == 0, result.output
    assert "3 of 3 prompts that all runs have are shown" in result.stdout
    page = Elements(Path("compare.html").read_text("utf-8"))
    for text in (
        "a/credit",
        "b/credit",
        "options.lam",
        "Value error by step",
        "Credit by step",
        "most different first",
    ):
        assert text in page.text, text
    assert page.tags.count("article") == 12
    assert page.tags.count("fieldset") == 1
    assert run(*runs.values(), "--compare", "--label", "old", "--label", "new", "-o", "c.html").exit_code == 0
    assert "old against new: 3 prompts" in Path("c.html").read_text("utf-8")


def test_runs_without_a_shared_prompt_have_curves_and_a_sentence(tmp_path: Path) -> None:
    found = compare_runs({n: dump(tmp_path / n, 1, 2, same=False) for n in "ab"})
    page = Elements(render_comparison(found))
    assert "no prompt in common" in page.text
    assert "article" not in page.tags
    assert "svg" in page.tags


def test_runs_that_share_nothing_are_no_comparison(tmp_path: Path) -> None:
    a, b = dump(tmp_path / "a", 1, 2, same=False), dump(tmp_path / "b", 7, same=False)
    result = run(a, b, "--compare", "-o", tmp_path / "c.html")
    assert result.exit_code == 1
    assert "with a step or a prompt in common, got neither (a: steps 1 to 2; b: steps 7 to 7)" in result.stderr
    assert not (tmp_path / "c.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/credit", "--compare"], "compare: expected 2 to 4 paths, one per run, got 1"),
        (["a/credit", "a/credit", "--compare"], "got one of them twice"),
        (["a/credit", "b/credit", "--compare", "--label", "x"], "label: expected one per path, 2, got 1"),
        (["a/credit", "b/credit", "--compare", "--label", "x", "--label", "x"], "got one of them twice"),
        (["a/credit", "--label", "x"], "label=x: has no effect without --compare; give --compare as well"),
        (["a/credit", "b/credit", "--compare", "--terminal"], "--terminal and --compare cannot be combined"),
        (["a/credit", "--watch", "--compare"], "--compare and --watch cannot be combined"),
    ],
)
def test_wrong_usage(runs: dict[str, Path], arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_runs_are_named_by_what_tells_them_apart() -> None:
    assert list(name_runs([Path("x/a/credit"), Path("x/b/credit")], [])) == ["a/credit", "b/credit"]
    assert list(name_runs([Path("x/a"), Path("x/b")], [])) == ["a", "b"]


def test_options_of_scored_files_and_broken_ones(tmp_path: Path) -> None:
    scored = write(tmp_path / "x.jsonl", trace([0.5]))
    assert read_options(scored) == {}
    (tmp_path / "x.jsonl.meta.json").write_text(
        '{"options": {"lam": 1.0, "proposals": null, "long": "' + "x" * 500 + '"}}'
    )
    found = read_options(scored)
    assert found["options.lam"] == "1.0"
    assert found["options.proposals"] == "null"
    assert len(found["options.long"]) < 70
    (tmp_path / "x.jsonl.meta.json").write_text("{half")
    assert read_options(scored) == {}


def test_raw_values_are_not_blamed_on_calibration(tmp_path: Path) -> None:
    folder = dump(tmp_path / "a", 1, 2)
    assert "Calibration had too few prompts" in run(folder, "--terminal").stdout
    (folder / "run.json").write_text('{"options": {"calibrate": "none"}}')
    assert "Calibration had too few prompts" not in run(folder, "--terminal").stdout


@pytest.mark.parametrize("estimator", ["critic", "attention"])
def test_values_in_reward_units_need_no_prompts_to_be_fitted_on(estimator: str, tmp_path: Path) -> None:
    folder = dump(tmp_path / "a", 1, 2)
    for name, told in ((estimator, False), ("support", True), ("my.module:Mine", True)):
        options = {"calibrate": "outcome", "value_estimator": name}
        (folder / "run.json").write_text(json.dumps({"options": options}))
        page = tmp_path / "page.html"
        run(folder, "-o", str(page), "--force")
        for text in (run(folder, "--terminal").stdout, page.read_text()):
            assert ("Calibration had too few prompts" in text) == told


def test_hostile_runs_stay_texts(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "1.jsonl", {**trace([-0.5], text=ATTACK, prompt=ATTACK), "ground_truth": ATTACK})
        (tmp_path / name / "run.json").write_text(json.dumps({ATTACK: name + ATTACK}))
    page = Elements(render_comparison(compare_runs({ATTACK: tmp_path / "a", "b": tmp_path / "b"})))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.text.count('<script>alert("1")</script>') >= 5


# ---- watching


def test_a_change_makes_a_page_and_ctrl_c_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    ticks = iter(range(10))

    def sleep(seconds: float) -> None:
        tick = next(ticks)
        if tick == 1:
            write(tmp_path / "1.jsonl", trace([0.5]))
        if tick == 4:
            write(tmp_path / "2.jsonl", trace([0.5]))
        if tick == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert watch([tmp_path], lambda: made.append(len(signature([tmp_path]))), 1.0)
    assert made == [1, 2], "nothing before the first file, then once per change"


def test_nothing_to_watch_ends_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", stop)
    assert not watch([tmp_path / "later"], lambda: pytest.fail("there is nothing"), 1.0)


def test_a_page_follows_a_run_and_stops_reloading_at_the_end(tmp_path: Path) -> None:
    folder, page = tmp_path / "credit", tmp_path / "live.html"
    command = [
        sys.executable,
        "-m",
        "rredcot_plugin.cli",
        "report",
        "credit",
        "--watch",
        "--every",
        "0.2",
        "-o",
        "live.html",
    ]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    ) as process:
        folder.mkdir()
        write(folder / "1.jsonl", trace([0.5], text="first"))
        _wait_for(page, "first", process)
        assert 'data-seconds="0.2" checked' in page.read_text("utf-8")
        (folder / "2.jsonl").write_text("{half")
        write(folder / "3.jsonl", trace([-0.5], step=3, text="second"))
        _wait_for(page, "second", process)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "stopped; 2 of 2 traces are shown" in out
    assert "Traceback" not in errors
    assert "data-seconds" not in page.read_text("utf-8")
    assert not list(tmp_path.glob("*.part"))


def _hear_interrupts() -> None:
    """A test run that a script has put into the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_for(page: Path, text: str, process: subprocess.Popen[str]) -> None:
    for _ in range(300):
        if page.exists() and text in page.read_text("utf-8"):
            return
        assert process.poll() is None
        time.sleep(0.1)
    pytest.fail(f"no page with {text!r}")
