"""Probes, attribution and sums of squares in verl's FSDP2 engine equal independent forwards and leave verl's own outputs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.session_plane import SessionLayout
from rredcot_plugin.integrations.verl.sessions import row_roles
from rredcot_plugin.integrations.verl.tokens import onto_rows
from rredcot_plugin.probes.layout import pack, unpack

ROOT = Path(__file__).parents[2]


def start_check(folder: Path, *ranks: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.contract.engine_check", str(folder), *map(str, ranks)],
        cwd=ROOT,
        env={**os.environ, "VERL_PLATFORM": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_engine_probes_attribution_and_squares(tmp_path: Path) -> None:
    process = start_check(tmp_path)
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error[-3000:]
    assert out.count("equal") == 4
    assert out.count("attribution: the same") == 2
    assert out.count("as agreed") == 2
    assert out.count("as softmax says") == 2
    assert out.count("under autocast") == 2


def test_ranks_with_different_rows_stay_in_step(tmp_path: Path) -> None:
    """Two ranks share the model; one has no answer to attribute and must run forward and backward all the same."""
    processes = [start_check(tmp_path, rank, 2) for rank in range(2)]
    try:
        for process in processes:
            out, error = process.communicate(timeout=600)
            assert process.returncode == 0, error[-3000:]
            assert out.count("attribution: the same") == 2
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("specs", [[], [(3, [7], 0)], [(0, [1, 2, 3], 2), (9, [4, 5], 1)]])
def test_wire_round_trip(specs: list) -> None:
    assert unpack(pack(specs)) == specs


@pytest.mark.parametrize("starts", [[3, -1, 0], [-1], [5, 5]])
def test_answer_starts_travel_jagged_or_dense(starts: list[int]) -> None:
    field, lengths = transfer_fields.pack_starts(starts), [9] * len(starts)
    expected = [9 if start < 0 else start for start in starts]
    assert transfer_fields.unpack_starts(field, lengths) == expected
    assert transfer_fields.unpack_starts(torch.tensor(starts)[:, None], lengths) == expected


def test_an_unknown_attribution_is_named() -> None:
    assert transfer_fields.attributions("gradient,attention") == ["gradient", "attention"]
    with pytest.raises(ValueError, match="expected attention or gradient"):
        transfer_fields.attributions("atention")


def test_roles_follow_verls_keys_whatever_the_order() -> None:
    keys = ["u_1_0", "pad9_0_0", "u_0_10", "v_0_0", "u_0_9"]
    tags = [{}, {"is_padding": True}, {}, {}, {}]
    roles = row_roles(keys, tags)
    assert roles.names == ["u_1", "u_0", "v_0"], "in the order of their last outputs"
    assert roles.sessions == [[0], [4, 2], [3]] and roles.numbers == [[0], [9, 10], [0]]
    assert roles.active == [0, 4, 2, 3] and roles.padding == [1]
    assert roles.metrics == {"rredcot/sessions/rows/mean": 4 / 3, "rredcot/fallback/missing_row/mean": 1 / 3}
    assert row_roles([], []).metrics["rredcot/sessions/rows/mean"] == 0


def test_every_output_has_its_own_columns_back_and_padding_nothing() -> None:
    roles = row_roles(["u_0_1", "u_0_0", "p_0_0", "u_1_0"], [{}, {}, {"is_padding": True}, {}])
    layout = SessionLayout([[2, 3], [1]], roles.numbers)
    assert roles.sessions == [[1, 0], [3]]
    own = torch.tensor([[0.1, 0.2, 9.0, 0.4, 0.5, 0.6], [0.7, 9.0, 9.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    found = onto_rows(own, roles, layout, mask)
    assert torch.allclose(found, torch.tensor([[0, 0.5, 0.6], [0.1, 0.2, 0], [0, 0, 0], [0.7, 0, 0]]))
    mask[0] = 0
    assert torch.equal(onto_rows(own, roles, layout, mask)[:3], torch.zeros(3, 3)), "the last output is lost"
    returns = onto_rows(own, roles, layout, mask, lost=own + 1)
    told = torch.tensor([[0, 0, 0], [1.1, 1.2, 0], [0, 0, 0], [0.7, 0, 0]])
    assert torch.allclose(returns, told), "its critic is told its own values"
    joined = layout.join(torch.tensor([[1, 2, 0], [3, 4, 5], [6, 0, 0]]))
    assert joined.tolist() == [[1, 2, 0, 3, 4, 5], [6, 0, 0, 0, 0, 0]]
    assert layout.is_last(6).tolist() == [[False] * 3 + [True] * 3, [True] * 6]
