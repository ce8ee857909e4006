"""`rredcot report`: pages in one move, nothing overwritten, broken lines told, model text never obeyed."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.report.corpus import StepSummary
from rredcot_plugin.report.terminal_report import bars, thinned

DOCS = Path(__file__).parents[2] / "docs"
WIDE = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
ATTACK = '</script><script>alert("1")</script><img src=x onerror=alert(2)> [bold]x[/bold] \x1b[2J\u202e'


def trace(
    credits: list[float], *, step: int = 1, uid: str = "a", text: str = "line", prompt: str = "1 + 1 ="
) -> Any:
    """A dump line as the trainer writes it, of a prompt of value 0.5."""
    values = [0.5]
    for credit in credits:
        values.append(values[-1] + credit)
    segments = [
        {
            "text": f"{text} {i}\n",
            "tokens": 3,
            "value": values[i],
            "reward": credit + (0.5 if i == 0 else 0.0),
            "advantage": values[-1] - values[i],
        }
        for i, credit in enumerate(credits)
    ]
    return {
        "step": step, "uid": uid, "prompt": prompt, "ground_truth": "2", "reward": values[-1], "segments": segments,
    }  # fmt: skip


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in records)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps of a run, in a folder that commands run beside."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "credit" / "1.jsonl", trace([0.1, -0.6]), trace([0.2, 0.3], text="right"))
    write(tmp_path / "credit" / "2.jsonl", trace([0.3, 0.2], step=2), trace([0.2, -0.7], step=2, text="worst"))
    return tmp_path / "credit"


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


class Elements(HTMLParser):
    """Tags, attribute names and text outside scripts that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["script"]:
            self.text += data


def test_a_page_is_written_and_what_it_shows_is_told(dumps: Path) -> None:
    result = run(dumps)
    assert result.exit_code == 0, result.output
    assert "4 of 4 traces are shown, of 2 of 2 groups" in result.stdout
    assert result.stdout.splitlines()[-1] == "report.html"
    page = Path("report.html").read_text("utf-8")
    assert "worst 1" in page
    assert "rredcot report" in page
    assert not list(Path().glob("*.part"))


def test_nothing_is_overwritten_without_force(dumps: Path) -> None:
    page = Path("report.html")
    page.write_text("mine")
    result = run(dumps)
    assert result.exit_code == 2
    assert "in the way" in result.stderr
    assert page.read_text() == "mine"
    assert run(dumps, "--force", "--title", "Other <title>").exit_code == 0
    assert "Other &lt;title&gt;" in page.read_text("utf-8")


def test_rollouts_are_never_overwritten(dumps: Path) -> None:
    before = (dumps / "1.jsonl").read_bytes()
    for out in (dumps / "1.jsonl", dumps):
        assert run(dumps / "1.jsonl", "-o", out, "--force").exit_code == 2
    assert run(dumps, "-o", dumps / "1.jsonl", "--force").exit_code == 2
    assert (dumps / "1.jsonl").read_bytes() == before


def test_a_page_that_fails_leaves_the_old_one(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path("report.html")
    page.write_text("mine")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("os.replace", full)
    result = run(dumps, "--force")
    assert result.exit_code == 1
    assert "report.html: No space left on device" in result.stderr
    assert page.read_text() == "mine"
    assert not list(Path().glob("*.part"))


def test_broken_lines_are_told_and_the_page_is_written(dumps: Path) -> None:
    write(dumps / "3.jsonl", trace([0.5], step=3), '{"step": 3, "ui', *["[]"] * 7, f'["{ATTACK}"]')
    result = run(dumps)
    assert result.exit_code == 1
    assert re.search(r"3\.jsonl, line 2: left out: no complete JSON: .* is the file truncated\?", result.stderr)
    assert result.stderr.count("left out: ") == 5
    assert "and 4 more lines were left out" in result.stderr
    assert "line 2" not in result.stdout
    page = Path("report.html").read_text("utf-8")
    assert "is the file truncated?" in page


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothere"], 1, "nothere: no such file or folder"),
        (["empty"], 1, "empty: no rollouts here, expected files called *.jsonl"),
        (["broken.jsonl"], 1, "broken.jsonl, line 1: missing columns"),
        (["credit", "--step", "7"], 1, "steps: expected steps that the files have"),
        (["credit", "--step", "7-2"], 2, "step=7-2: expected a step such as 40"),
        (["credit", "--step", "x"], 2, "step=x: expected a step such as 40"),
        (["credit", "--max-traces", "0"], 2, "max-traces"),
        (["credit", "--tensorboard", "empty"], 1, "empty: no tensorboard event files"),
        (["credit", "--tensorboard", "a=empty", "--tensorboard", "a=empty"], 2, "there is a run 'a' already"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors_in_one_line(dumps: Path, arguments: list[str], code: int, message: str) -> None:
    Path("empty").mkdir()
    write(Path("broken.jsonl"), {"a\x1b[2J": 1})
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    assert not Path("report.html").exists()


def test_without_an_extra_the_way_out_is_told(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.commands.report.find_spec", lambda name: None)
    result = run(dumps, "--tensorboard", dumps)
    assert result.exit_code == 2
    assert "pip install 'rredcot[report]'" in result.stderr
    assert run(dumps).exit_code == 0


def test_the_terminal_shows_the_same(dumps: Path) -> None:
    result = run(dumps, "--terminal", "--worst", "1")
    assert result.exit_code == 0
    assert not Path("report.html").exists()
    shown = result.stdout
    assert "4 traces in 2 groups" in shown
    assert re.search(r"^2 +2 +0\.50 +0\.50 +0\.50 ", shown, re.MULTILINE)
    assert re.search(r"^0\.50 to 0\.60 +4 +1 +0\.50 +0\.50 +n/a", shown, re.MULTILINE)
    assert re.search(r"reward of a trace +0 +[█▁ ]+ +1 +4", shown)
    assert "worst 1" in shown
    assert "line 1" not in shown
    assert run(dumps, "--terminal", "-o", "page.html").exit_code == 0
    assert Path("page.html").exists()


def test_rollouts_without_credit(dumps: Path) -> None:
    lines = [
        {"input": "1 + 1 =", "output": f"{i}", "gts": "2", "score": float(i == 2), "step": 1} for i in range(4)
    ]
    path = write(Path("rollouts/1.jsonl"), *lines)
    result = run(path, "--terminal", "-o", "page.html")
    assert result.exit_code == 0
    assert "No segment credit" in result.stdout
    assert "nan" not in result.stdout.lower()
    assert "rredcot score" in Path("page.html").read_text("utf-8")


def test_only_some_steps(dumps: Path) -> None:
    result = run(dumps, "--step", "2-9", "--step", "40")
    assert "2 of 2 traces are shown" in result.stdout
    assert "Only steps 2-9, 40." in Path("report.html").read_text("utf-8")


def test_model_text_is_obeyed_nowhere(dumps: Path) -> None:
    hostile = {**trace([-0.5], text=ATTACK, prompt=ATTACK), "ground_truth": ATTACK, "uid": ATTACK}
    unknown = {**trace([0.1], text="\ud800"), "reward": None}
    write(
        dumps / "1.jsonl",
        hostile,
        unknown and json.dumps(unknown),
        {"input": ATTACK, "output": ATTACK, "score": 1},
    )
    write(Path(f"{ATTACK[9:17]}.jsonl"), trace([0.5]))
    assert run(dumps, *Path().glob("*.jsonl"), "--title", ATTACK).exit_code == 0
    text = Path("report.html").read_text("utf-8")
    plain = Elements(text)
    write(dumps / "1.jsonl", trace([-0.5]), trace([0.1]), {"input": "a", "output": "b", "score": 1})
    assert run(dumps, *Path().glob("*.jsonl"), "--force").exit_code == 0
    harmless = Elements(Path("report.html").read_text("utf-8"))
    assert set(plain.tags) <= set(harmless.tags)
    assert plain.tags.count("script") == harmless.tags.count("script")
    assert not any(name.startswith("on") for name in plain.attributes)
    assert plain.text.count('<script>alert("1")</script>') >= 4
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_model_text_is_obeyed_nowhere_in_the_terminal(dumps: Path) -> None:
    hostile = {**trace([-0.5], text=ATTACK, prompt=ATTACK), "ground_truth": ATTACK, "uid": ATTACK}
    write(dumps / "1.jsonl", hostile, '["[bold]')
    result = run(dumps, "--terminal", "--worst", "9")
    assert "[bold]x[/bold]" in result.stdout
    assert "\x1b[2J" not in result.output
    assert "\u202e" not in result.output


def test_a_large_dump_makes_a_bounded_page(dumps: Path) -> None:
    rng = random.Random(0)
    path = Path("large.jsonl")
    with path.open("w") as file:
        for i in range(2_500):
            text = " ".join(str(rng.random()) for _ in range(18))
            record = trace([rng.uniform(-0.3, 0.3) for _ in range(20)], uid=str(i // 8), text=f"{text} {i}")
            file.write(json.dumps(record) + "\n")
    assert path.stat().st_size > 20_000_000
    result = run(path, "--max-mb", "0.5", "--max-traces", "1000")
    assert result.exit_code == 0
    assert "of 2,500 traces are shown" in result.stdout
    assert 500_000 < Path("report.html").stat().st_size < 4 * 500_000


def test_curves_come_from_tensorboard(dumps: Path) -> None:
    name = ATTACK.replace("=", "")
    make_run(Path("runs/lr=0.1"))
    runs = ["--tensorboard", "runs/lr=0.1", "--tensorboard", f"{name}=runs/lr=0.1"]
    result = run(dumps, *runs, "--terminal", "-o", "p.html")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^lr=0.1 +0\.10 +1\.00 ", result.stdout, re.MULTILINE)
    assert "\x1b[2J" not in result.stdout
    page = Elements(Path("p.html").read_text("utf-8"))
    assert "lr=0.1" in page.text
    assert "img" not in page.tags


def make_run(folder: Path) -> None:
    writer_module = import_module("torch.utils.tensorboard")
    with writer_module.SummaryWriter(str(folder)) as writer:
        for step in range(1, 11):
            writer.add_scalar("critic/score/mean", step / 10, step)


def test_every_command_of_the_page_works(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "guides" / "report.md").read_text("utf-8"), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("rredcot report")]
    assert len(commands) >= 9

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt  # what ends --watch

    monkeypatch.setattr("rredcot_plugin.report.watch.time.sleep", stop)
    write(dumps / "50.jsonl", trace([0.5, -0.9], step=50))
    write(dumps / "60.jsonl", trace([0.5, -0.9], step=60))
    shutil.copy(dumps / "1.jsonl", "rollouts.scored.jsonl")
    write(Path("rollouts/1.jsonl"), {"input": "a", "output": "b", "gts": "c", "score": 1.0, "step": 1})
    for name in ("grpo", "rredcot"):
        make_run(Path("runs") / name)
        write(Path(name) / "credit" / "1.jsonl", trace([0.5, -0.9]))
    for command in commands:
        result = run(*shlex.split(command, comments=True)[2:])
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert {path.name for path in Path().glob("*.html")} == {
        "report.html", "steps.html", "scored.html", "plain.html", "curves.html", "compared.html", "live.html",
    }  # fmt: skip


def test_bars_and_thinning() -> None:
    assert bars([]) == ""
    assert bars([0, 0]) == "  "
    assert bars([1, 8, 4, 1000]) == "▁▁▁█"
    steps = [StepSummary(step, *[0] * 7) for step in range(100)]
    shown = [summary.step for summary in thinned(steps, 20)]
    assert (shown[0], shown[-1], len(set(shown))) == (0, 99, 20)
    assert thinned(steps[:20], 20) == steps[:20]
