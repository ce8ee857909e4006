"""The planted bugs of ``make mutants`` fit the code as it is, so that they can be planted at all."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant, planted


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted_and_its_tests_are_there(mutant: Mutant) -> None:
    code = (ROOT / "rredcot_plugin" / mutant.file).read_text(encoding="utf-8")
    assert planted(mutant, code) != code
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (f"def {name}(" if name else "def test_") in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_names_tell_bugs_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
