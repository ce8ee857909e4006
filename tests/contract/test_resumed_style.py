"""verl's checkpoints hold how the model answers, whoever plans the probes: the driver or processes of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.state import STYLE, state_of, take_up
from rredcot_plugin.integrations.verl.runner import STATE_FILE
from rredcot_plugin.text.answers import FORMATS
from rredcot_plugin.text.encoding import ProbeEncoder
from tests.contract.memory import MemoryQueue, lay_down, make_trainer, step
from tests.contract.runner_steps import queue  # noqa: F401  fixtures
from tests.contract.workers_cluster import cluster, make_workers  # noqa: F401  fixtures
from tests.contract.workers_cluster import lay_down as put_into_queue
from tests.unit.test_group_work import TOKENIZER, bare_rows

OPTIONS = {"segmenter": "newline", "value_estimator": "ground_truth"}
"""Of the values that probe where no response has a final answer."""


def without_answers(seed: int) -> PromptedRollouts:
    """Rows in which no answer format is recognised."""
    rows = bare_rows(seed=seed)
    (marker,), (letter,) = (TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in "#x")
    ids = torch.where(rows.rollouts.token_ids == marker, letter, rows.rollouts.token_ids)
    return dataclasses.replace(rows, rollouts=dataclasses.replace(rows.rollouts, token_ids=ids))


def test_a_resumed_run_probes_as_the_step_before_has_answered(queue: MemoryQueue, tmp_path: Path) -> None:
    folder = f"trainer.default_local_dir={tmp_path}"
    trainer = make_trainer(queue, OPTIONS, folder)
    step(trainer, lay_down(queue, bare_rows()))
    trainer._save_checkpoint()
    rows = without_answers(seed=1)
    wanted = step(trainer, lay_down(queue, rows, seed=1))
    file = tmp_path / "global_step_2" / STATE_FILE
    state = torch.load(file, weights_only=True)
    assert state[STYLE]["format"] == "hash"
    for other in (False, True):
        if other:  # a checkpoint of a version that kept the calibration alone
            torch.save({name: own for name, own in state.items() if name != STYLE}, file)
        resumed = make_trainer(queue, OPTIONS, folder)
        resumed._load_checkpoint()
        found = step(resumed, lay_down(queue, rows, seed=1))
        same = all(torch.equal(found[key], advantages) for key, advantages in wanted.items())
        assert same != other, "in this batch's own style, which has none, probes say something else"
        bridge = resumed.rredcot.credit_workers.encoder.answer_format
        assert bridge == FORMATS["boxed" if other else "hash"]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_of_a_resumed_run_probe_so_too(workers: int) -> None:
    options = {**OPTIONS, "credit_workers": workers}
    whole, resumed = make_workers(options, delivers=False), make_workers(options, delivers=False)
    first, second = bare_rows(), without_answers(seed=1)
    whole.plan(put_into_queue(first), first.lengths)
    calibrator = whole.config.build_calibrator()
    take_up(state_of(calibrator, whole.encoder), calibrator, resumed.encoder)
    expected, found = (own.plan(put_into_queue(second), second.lengths)[1] for own in (whole, resumed))
    assert whole.processes == resumed.processes == workers
    assert found.size and found.specs == expected.specs
    fresh = make_workers(options, delivers=False)
    assert fresh.plan(put_into_queue(second), second.lengths)[1].specs != expected.specs
    assert resumed.encoder.answer_format == FORMATS["hash"] != ProbeEncoder(TOKENIZER).answer_format
    for own in (whole, resumed, fresh):
        own.pool.dismiss()
