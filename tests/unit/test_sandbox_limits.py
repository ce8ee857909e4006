"""Limits and isolation by name, plain data on its way, and the filter of system calls."""

from __future__ import annotations

import pytest

from rredcot_plugin.sandbox import (
    Limits,
    run_code,
)
from rredcot_plugin.sandbox.inside import kernel, plain
from tests.unit.sandbox_checks import unharmed  # noqa: F401  fixture

pytestmark = pytest.mark.usefixtures("unharmed")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu_seconds": 0}, "cpu_seconds must be a positive integer, got 0"),
        ({"cpu_seconds": 1.5}, "cpu_seconds must be a positive integer, got 1.5"),
        ({"wall_seconds": -1}, "wall_seconds must be a positive number, got -1"),
        ({"wall_seconds": float("nan")}, "wall_seconds must be a positive number, got nan"),
        ({"processes": True}, "processes must be a positive integer, got True"),
        ({"output_bytes": "1"}, "output_bytes must be a positive integer, got '1'"),
        ({"memory_bytes": 1000}, "memory_bytes must be at least 67108864, got 1000"),
    ],
)
def test_limits_name_key_and_value(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**given)


def test_isolation_is_strong_or_weak() -> None:
    with pytest.raises(ValueError, match="got 'none'"):
        run_code("pass", isolation="none")


@pytest.mark.parametrize(
    "value", [0, -(1 << 9999), True, 1.5, float("inf"), "é\0", b"\0", (), [[]], {1: {2: (3,)}}, 2j]
)
def test_plain_data_survives_the_way(value: object) -> None:
    back = plain.decode(plain.encode(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "data", [5, ["x", []], ["l", 3], ["d", [[["l", []], 1]]], ["i", "zz"], [], ["b", "0"], {}]
)
def test_what_is_no_plain_data_is_refused(data: object) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, IndexError)):
        plain.decode(data)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed_and_fits_the_kernel(machine: str) -> None:
    assert len(kernel.program(machine, True)) % 8 == 0
    assert len(kernel.program(machine, True)) < len(kernel.program(machine, False)) < 4096 * 8
    with pytest.raises(OSError, match="mips"):
        kernel.program("mips", True)
