"""The benchmark on learning: true values of tasks whose solution leaves no choice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import learning
from lab.rollouts import reference_values, with_signals
from lab.store import Store
from lab.tasks import EXACT_LINES, FAMILIES
from learn.batch import first_actor, rollouts
from learn.credit import Crediter
from learn.runs import Sizes
from learn.systems import TRUE
from learn.true_values import true_values

from tests.unit.learning_cases import system


@pytest.mark.parametrize("name", ["chains", "shares"])
def test_true_values_are_mean_rewards_of_continuations(tmp_path: Path, name: str) -> None:
    actor = first_actor(FAMILIES[name], Store(tmp_path), Sizes(1).clean_steps, "cpu")
    questions = actor.family.problems("train", 4, 3)
    batch = with_signals(actor, rollouts(actor, questions, 1, 5), questions)
    crediter = Crediter(system("true_credit"), actor, 0)
    segments = crediter.segmenter(batch.rows.rollouts)
    values = true_values(actor, batch, segments, crediter.segmenter)
    reference = reference_values(actor, batch, segments, [0, 1, 2, 3], 64, 1, 0, Store(tmp_path))
    there = segments.exists.numpy()
    assert np.abs(values.numpy()[there] - reference.values[there]).mean() < 0.04
    assert np.corrcoef(values.numpy()[there], reference.values[there])[0, 1] > 0.9
    deltas = np.diff(np.append(values[0, : int(segments.num_segments[0])], batch.rows.rollouts.outcomes[0]))
    ids = segments.segment_ids[0]
    credit = crediter(batch, 1).advantages[0][ids >= 0]
    assert np.allclose(credit, deltas[ids[ids >= 0]], atol=1e-5)


def test_a_task_with_many_solutions_has_none(tmp_path: Path) -> None:
    actor = first_actor(FAMILIES["multiples"], Store(tmp_path), Sizes(1).clean_steps, "cpu")
    questions = actor.family.problems("train", 1, 3)
    batch = with_signals(actor, rollouts(actor, questions, 1, 5), questions)
    assert system("true_credit").kind == TRUE and "multiples" not in EXACT_LINES
    with pytest.raises(ValueError, match=r"multiples: true values are known of sums, sorting"):
        Crediter(system("true_credit"), actor, 0)(batch, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--systems", "true_credit", "--families", "chains", "wordy"], "--systems true_credit: true values are not known of wordy;"),
        (["--systems", "grpo", "--greedy", "--against-verl"], "--greedy: not for --against-verl"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_anything_runs(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", *words])
    with pytest.raises(SystemExit, match="2"):
        learning.parse_arguments()
    assert message in capsys.readouterr().err
