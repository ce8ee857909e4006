"""What `rredcot dry-run` prints: phases where there is no terminal, and the overrides that it replaced."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rredcot_plugin.commands.dry_run import _live
from rredcot_plugin.dry_run.outcome import Outcome
from rredcot_plugin.tiny.progress import Progress


def test_a_pipe_gets_one_line_per_phase() -> None:
    console = Console(file=io.StringIO(), highlight=False)
    with _live(console) as show:
        for progress in (
            Progress("importing verl"),
            Progress("importing verl", "1/2"),
            Progress("training", "2/2"),
        ):
            show(progress)
    assert console.file.getvalue() == "    importing verl …\n    training …\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("verbose", "told"), [(True, "CPU: a.b, c"), (False, "CPU (--verbose names them)")])
def test_replaced_overrides_are_named_on_request(verbose: bool, told: str) -> None:
    outcome = Outcome({1: {"critic/score/mean": 0.5}}, ("a.b", "c"))
    *_, last = outcome.findings("verl", "critic/score/mean", "2 of 5 overrides", ours=False, verbose=verbose)
    assert last.text == f"2 of 5 overrides had another value on the {told}"
