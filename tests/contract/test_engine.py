"""Probes inside verl's FSDP2 engine equal independent forwards, and leave verl's own outputs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.integrations.verl.runner import share_with_sessions
from rredcot_plugin.integrations.verl.sessions import row_roles

ROOT = Path(__file__).parents[2]


def test_engine_probes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.engine_check", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 4
    assert done.stdout.count("as agreed") == 2


@pytest.mark.parametrize("specs", [[], [(3, [7], 0)], [(0, [1, 2, 3], 2), (9, [4, 5], 1)]])
def test_wire_round_trip(specs: list) -> None:
    assert wire.unpack(wire.pack(specs)) == specs


def test_roles_follow_verls_keys_whatever_the_order() -> None:
    keys = ["u_1_0", "pad9_0_0", "u_0_1", "v_0_0", "u_0_0"]
    tags = [{}, {"is_padding": True}, {}, {}, {}]
    roles = row_roles(keys, tags)
    assert [keys[row] for row in roles.active] == ["u_1_0", "u_0_1", "v_0_0"]
    assert roles.owner == [0, -1, 1, 2, 1]


def test_earlier_outputs_of_a_session_share_the_first_advantage_and_padding_gets_nothing() -> None:
    roles = row_roles(["u_0_0", "u_0_1", "p_0_0"], [{}, {}, {"is_padding": True}])
    own = torch.tensor([[0.0, 0.7, 0.3]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    shared = share_with_sessions(own, roles, mask)
    assert torch.allclose(shared, torch.tensor([[0.7, 0.7, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 0.0]]))
