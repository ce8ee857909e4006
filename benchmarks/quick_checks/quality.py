"""Values of the demo's reasoner again, place by place, against the committed run and its Monte-Carlo references.

The rollouts come from seeds and the checkpoint of the package, so they are the committed ones, and the reference of
each place is in the file: nothing has to be continued. On another processor rounding can draw other rollouts; then
nothing of the file belongs to them, which is said, and only the accuracy is compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fidelity import Sizes
from lab.agreement import Pairs, pearson
from lab.estimators import Workbench, config_of
from lab.models import CleanTraining, load_models
from lab.rollouts import Actor, sample_batch
from lab.store import Store
from lab.tasks import FAMILIES

from quick_checks.committed import Committed
from quick_checks.verdicts import Finding, exact, exactly, nothing, score
from rredcot_plugin.tiny.reasoner import build_tokenizer

FAMILY = "sums"
ROUNDED = 2e-3
"""Values are committed with three digits."""
UNCALIBRATED = "support"
ESTIMATORS = (UNCALIBRATED, "default")


@dataclass(frozen=True)
class Places:
    """What the committed run wrote down about each judged state: numbers by column, (places,) each."""

    columns: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Places:
        table = np.array([line.split() for line in raw["places"]], dtype=float)
        return cls(dict(zip(raw["columns"], table.T, strict=True)))

    @property
    def rows(self) -> np.ndarray:
        return self.columns["row"].astype(int)

    @cached_property
    def at(self) -> tuple[np.ndarray, np.ndarray]:
        return self.rows, self.columns["state"].astype(int)

    def belong_to(self, bench: Workbench, group: int, judged: int) -> bool:
        """Whether states and outcomes are those of these rollouts."""
        outcomes, counts = (
            bench.batches[-1].rows.rollouts.outcomes.numpy(),
            bench.segments[-1].num_segments.numpy(),
        )
        expected = [(row, k) for row in range(len(counts)) if row % group < judged for k in range(1, counts[row])]
        own = list(zip(*(x.tolist() for x in self.at), strict=True))
        return own == expected and bool((outcomes[self.rows] == self.columns["outcome"]).all())


def check_values(committed: Committed) -> list[Finding]:
    record = committed.record("fidelity")
    if record is None or FAMILY not in record["raw"]:
        return [nothing(f"values on {FAMILY}", f"fidelity.json: raw.{FAMILY}")]
    sizes, places = Sizes(**record["settings"]["sizes"]), Places.of(record["raw"][FAMILY][0])
    bench = sample(sizes)
    found = [accuracy(bench, record["summary"][f"{FAMILY}/accuracy"]["value"], sizes)]
    source = f"fidelity.json: raw.{FAMILY}[0]"
    if not places.belong_to(bench, sizes.group, sizes.judged):
        note = "other rollouts than the committed ones come from the same seed here, so their values say nothing"
        return [*found, nothing("values place by place", source, note=note)]
    for name in ESTIMATORS:
        values, committed_values = bench.values(name)[places.at], places.columns[name]
        if name == UNCALIBRATED:
            gap = float(np.max(np.abs(values - committed_values)))
            found.append(exact(f"{name}, {len(values)} places", gap, ROUNDED, f"{source}, column {name}"))
        truth, prompts = places.columns["reference"], places.rows // sizes.group
        measured, known = (pearson(Pairs(own, truth, prompts)) for own in (values, committed_values))
        found.append(score(f"{name}, Pearson of values", measured, known, f"{source}, column {name}"))
    return found


def sample(sizes: Sizes) -> Workbench:
    """The first draw's batches of the family, drawn again; nothing is kept."""
    family, training = FAMILIES[FAMILY], CleanTraining()
    questions = family.problems("val", sizes.prompts * (sizes.past + 1), sizes.seed_of(0))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        model = load_models(store, training, {family.model})[family.model]
        actor = Actor(family, model, build_tokenizer())
        batches = [
            sample_batch(actor, questions[i * sizes.prompts :][: sizes.prompts], sizes.group, seed, store, f"{i}")
            for i, seed in enumerate(range(sizes.seed_of(0) + 1, sizes.seed_of(0) + 2 + sizes.past))
        ]
    segments = [config_of("default").build_segmenter()(batch.rows.rollouts) for batch in batches]
    return Workbench(actor, batches, segments)


def accuracy(bench: Workbench, known: float, sizes: Sizes) -> Finding:
    """Share of rewarded rollouts of the last batch; the interval is of the deviation between its prompts."""
    outcomes = bench.batches[-1].rows.rollouts.outcomes.numpy()
    spread = 1.96 * float(outcomes.reshape(sizes.prompts, sizes.group).mean(axis=1).std()) / sizes.prompts**0.5
    interval = {"value": known, "low": known - spread, "high": known + spread}
    source = f"fidelity.json: {FAMILY}/accuracy"
    return score(f"accuracy on {FAMILY}", exactly(float(outcomes.mean())), interval, source)
