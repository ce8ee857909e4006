"""`rredcot report` in the terminal, on large dumps, and hostile texts."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

from rredcot_plugin.report.corpus import StepSummary
from rredcot_plugin.report.terminal_report import bars, thinned
from tests.unit.report_runs import (
    ATTACK,
    dumps,  # noqa: F401  fixtures
    run,
    trace,
    write,
)

DOCS = Path(__file__).parents[2] / "docs"


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


def test_the_terminal_shows_the_same(dumps: Path) -> None:
    result = run(dumps, "--terminal", "--worst", "1")
    assert result.exit_code == 0
    assert not Path("report.html").exists()
    shown = result.stdout
    assert "4 traces in 2 groups" in shown
    assert re.search(r"^2 +2 +0\.50 +0\.50 +0\.50 ", shown, re.MULTILINE)
    assert re.search(r"^0\.50 to 0\.60 +4 +1 +0\.50 +0\.50 +n/a", shown, re.MULTILINE)
    assert re.search(r"reward of a trace +0 +[█▁ ]+ +1 +4", shown)
    assert re.search(r"segments of a trace +(\d+) +█ +\1 +4", shown)  # all have as many
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
    assert "No segment credit in these files" in result.stdout and "`rredcot score` adds it" in result.stdout
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
