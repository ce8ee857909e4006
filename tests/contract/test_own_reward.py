"""What is probed in other groups does not depend on a rollout's own reward, once there is a past."""

from __future__ import annotations

import pytest
import torch

from rredcot_plugin.integrations.verl import transfer_fields
from tests.contract.memory import PARTITION, MemoryQueue, key_of, lay_down, make_trainer, step
from tests.contract.runner_steps import NEWLINE, queue  # noqa: F401  fixture
from tests.unit.test_group_work import bare_rows


def probes_of(queue: MemoryQueue, reward: float) -> dict[str, torch.Tensor]:
    """The probes of all rows of a second step in which the first rollout has this reward."""
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE)
    step(trainer, lay_down(queue, rows))
    batch = lay_down(queue, rows)
    own = queue.rows[PARTITION, key_of(rows, 0)]
    own["rm_scores"] = torch.zeros(rows.lengths[0])
    own["rm_scores"][rows.rollouts.response_mask[0].nonzero()[-1]] = reward
    step(trainer, batch)
    others = [row for row, group in enumerate(rows.rollouts.group_ids) if group != rows.rollouts.group_ids[0]]
    return {key: queue.rows[PARTITION, key][transfer_fields.PROBES] for key in (key_of(rows, i) for i in others)}


@pytest.mark.parametrize("reward", [-1.0, -5.0])
def test_other_groups_are_probed_alike(queue: MemoryQueue, reward: float) -> None:
    found, reference = probes_of(queue, reward), probes_of(queue, 1.0)
    assert len(found) > 4 and sum(map(len, found.values())) > 100
    for key, probes in found.items():
        assert torch.equal(probes, reference[key])
